"""Numbers in any text: a slow reader that follows the docstrings, Python's own `Decimal`, and what must not differ."""

import re
from decimal import Decimal, InvalidOperation

from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.number_grammar import (
    ENGLISH,
    PLAIN,
    Style,
    is_number,
    malformed,
    numbers_in,
    parse_number,
    plain_answer,
    plain_numbers,
)
from ntl.numbers import SPACE_MARKERS, numeral

# Any text, and text in which numbers, signs, dots, letters and brackets meet often.
TEXTS = st.text(max_size=40) | st.text("0123456789.+-−,eE_ )]x\n²٣", max_size=40)
DIGITS = "0123456789"


def decimal(text):
    """Return what Python reads in plain ASCII digits, dots and signs, or None."""
    if not set(text) <= set(DIGITS + "+-."):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def word(char):
    return char.isalnum() or char == "_"


def read_slowly(text):
    """Return the numbers of a text as the comments of `ntl.number_grammar` tell them, character by character."""
    found, at = [], 0
    while at < len(text):
        start = at
        if text[at] in "+-" and not (at and (word(text[at - 1]) or text[at - 1] in ")]")):
            at += 1
        whole = at
        while at < len(text) and text[at] in DIGITS:
            at += 1
        has_whole = at > whole
        before = text[at - 1] if at else ""
        dot = at < len(text) and text[at] == "." and text[at + 1 : at + 2] and text[at + 1] in DIGITS
        if dot and (has_whole or not (before and (word(before) or before == "."))):
            at += 1
            while at < len(text) and text[at] in DIGITS:
                at += 1
            has_whole = True
        if has_whole:
            found.append(text[start:at])
        else:
            at = start + 1
    return found


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(TEXTS)
def test_numbers_in_text(text):
    expected = read_slowly(text)
    assert [match.group() for match in numbers_in(text)] == expected


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(st.sampled_from(["", *SPACE_MARKERS]), TEXTS | st.from_regex(r"[0-9]+(\.[0-9]+)?", fullmatch=True))
def test_numerals(marker, text):
    bare = text[1:] if not marker and text[:1] in SPACE_MARKERS else text
    plain = decimal(bare) is not None and bare[0] in DIGITS and bare[-1] in DIGITS
    assert numeral(marker + text) == (bare if plain else None)


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(TEXTS, st.decimals(allow_nan=False, allow_infinity=False))
def test_a_number_at_the_end_is_read_exactly(text, number):
    assert parse_number(f"{text} {number:f}") == number


STYLES = [ENGLISH, PLAIN, Style(",", ""), Style(",", "."), Style(",", " "), Style(".", " "), Style(".", ", ")]
SPELLINGS = TEXTS | st.text("0123456789.,+-−–eE^/: ×x*·{}_'()[]\\$€%½²³٣３٫\u00a0abc", max_size=30)


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(SPELLINGS, st.sampled_from(STYLES))
def test_rewritten_text_is_read_as_the_original(text, style):
    number = parse_number(text, style)
    assert number is None or number.is_finite()
    if malformed(text, style):
        assert number is None and not is_number(text, style)
        return
    written = plain_answer(text, style)
    if written is None:
        assert is_number(text, style)  # a fraction without a finite decimal form
    else:
        assert parse_number(written, ENGLISH) == number
        if is_number(text, style):
            assert re.fullmatch(r"\s*[+-]?[0-9]*(\.[0-9]+)?\s*", written)


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(SPELLINGS, st.sampled_from(STYLES))
def test_numbers_are_rewritten_once(text, style):
    once = plain_numbers(text, style)
    if style.decimal == ".":
        assert plain_numbers(once, style) == once


SPELT = [
    lambda d: d,
    lambda d: d.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
    lambda d: f"${d}",
    lambda d: f"{d} €",
]


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(
    st.decimals(-(10**12), 10**12, allow_nan=False, places=3),
    st.sampled_from(STYLES),
    st.sampled_from(SPELT),
    st.sampled_from("-−–"),
    st.booleans(),
)
def test_a_number_written_in_a_style_is_read_in_it(number, style, spelt, minus, grouped):
    text = f"{abs(number):{',' if grouped and style.thousands else ''}f}"
    text = text.translate(str.maketrans(",.", f"{style.thousands[:1] or ','}{style.decimal}"))
    text = spelt(text)
    text = minus + text if number.is_signed() else text
    assert is_number(text, style) and parse_number(text, style) == number
    assert parse_number(f"so 1 and {text}.", style) == number
    assert Decimal(plain_answer(text, style)) == number
