"""Files that have been cut, or written into."""

from hypothesis import strategies as st


@st.composite
def damaged(draw, content, special):
    """`content` with some of its bytes gone from a place on, and others there: one of `special`, or any few."""
    at = draw(st.integers(0, len(content)))
    rest = content[at + draw(st.integers(0, 8)) :] if draw(st.booleans()) else b""
    return content[:at] + draw(st.sampled_from(special) | st.binary(max_size=4)) + rest
