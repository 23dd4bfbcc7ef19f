"""Numbers in any text: a slow reader that follows the docstrings, and Python's own `Decimal`, as oracles."""

import math
from decimal import Decimal, InvalidOperation

from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.numbers import SPACE_MARKERS, is_number, numbers_in, numeral, parse_number, signed_log10

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
    """Return the numbers of a text as the comments of `ntl.numbers` tell them, character by character."""
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
    number = parse_number(text)
    assert number == (Decimal(expected[-1]) if expected else None)
    if number is not None:
        assert number.is_finite() and not math.isnan(signed_log10(number))
        assert float(number) == float(expected[-1])


@settings(deadline=None, max_examples=5 * settings.default.max_examples)  # they are cheap
@given(TEXTS)
def test_one_number_alone(text):
    bare = text.strip()
    assert is_number(text) == (decimal(bare) is not None and not bare.endswith("."))
    if is_number(text):
        assert parse_number(text) == Decimal(bare)


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
