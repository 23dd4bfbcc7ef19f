"""Any text and any ids through every encoding: no error of any kind, and the round trips that are promised."""

import math
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.encodings import TrainedBPE, available, build
from ntl.encodings.values import Scale
from ntl.number_grammar import numbers_in, parse_number

TEXTS = [f"What is {a} + {b * 111}.5?" for a in range(40) for b in range(10)]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NUMBERS = st.from_regex(r"[+-]?([0-9]{1,45}(\.[0-9]{1,30})?|\.[0-9]{1,30})", fullmatch=True)
SPELT = st.sampled_from(["</s>", "<pad>", "[NUM]", "[MASK]", "_5_0_", "_0_-12_", "9" * 400, "0" * 400 + ".5"])
ANY = st.lists(UNICODE | NUMBERS | SPELT, max_size=6).map("".join)
# As a model writes them, as labels are filled up, and as nothing should.
IDS = st.lists(st.integers(-2, 800) | st.just(-100) | st.integers(), max_size=60)


@cache
def encoding(name):
    return build(name, TrainedBPE(TEXTS, vocab_size=400, marker=True))  # as T5 has it


def check_lists(encoded):
    assert len({len(values) for values in encoded.values()}) == 1
    assert all(math.isfinite(value) for value in encoded.get("values", []))
    assert not any(math.isinf(value) for value in encoded.get("value", []))


@pytest.mark.parametrize("name", available())
@settings(deadline=None)
@given(ids=IDS)
def test_any_ids_are_a_text(name, ids):
    text = encoding(name).decode(ids)
    assert text == text.encode().decode()  # whole characters


@pytest.mark.parametrize("name", ["digits", "subword", "scalar"])
@settings(deadline=None)
@given(text=ANY)
def test_any_text_comes_back(name, text):
    encoded = encoding(name).encode(text)
    check_lists(encoded)
    assert encoding(name).decode(encoded["input_ids"]) == text


@settings(deadline=None)
@given(text=ANY)
def test_any_text_comes_back_from_digits_at_places(text):
    rt = encoding("rt")
    rt.take_report()
    encoded = rt.encode(text)
    check_lists(encoded)
    assert rt.decode(encoded["input_ids"]) == text or rt.take_report().get("rounded")


@pytest.mark.parametrize("name", ["xval", "xval_mask_signed"])
@settings(deadline=None)
@given(text=ANY)
def test_any_text_comes_back_with_its_numbers_filled_in(name, text):
    xval = encoding(name)
    encoded = xval.encode(text)
    check_lists(encoded)
    numbers = [found.group() for found in numbers_in(text)]
    assert encoded["input_ids"].count(xval.number_id) == len(numbers)
    # Two numbers with nothing between them are parted by a space.
    ends = {found.end() for found in numbers_in(text)}
    starts = [found.start() for found in numbers_in(text) if found.start() in ends]
    expected = text
    for start in reversed(starts):
        expected = f"{expected[:start]} {expected[start:]}"
    assert xval.decode(encoded["input_ids"], numbers) == expected


@settings(deadline=None)
@given(text=ANY)
def test_published_xval_has_a_token_for_every_run_of_digits(text):
    xval = encoding("xval_mask")
    encoded = xval.encode(text)
    check_lists(encoded)
    numbers = re.findall(r"[0-9]+(?:\.[0-9]+)?", text)
    assert encoded["input_ids"].count(xval.number_id) == len(numbers)
    if "," not in text:  # which is dropped between numbers
        assert xval.decode(encoded["input_ids"], numbers) == text


@pytest.mark.parametrize("name", ["scalar", "xval_mask", "xval_mask_signed"])
@settings(deadline=None)
@given(text=ANY)
def test_any_answer_is_one_target(name, text):
    encoded = encoding(name).encode_answer(text)
    check_lists(encoded)
    assert math.isnan(encoded["value"][-1]) == (parse_number(text) is None)


@settings(deadline=None)
@given(
    z=st.floats(),
    unit=st.sampled_from([None, 1.0, 2.2]),
    mean=st.floats(-1e30, 1e30),
    std=st.floats(1e-30, 1e30),
    decimals=st.none() | st.integers(0, 30),
    significant=st.integers(1, 15),
)
def test_whatever_a_head_says_is_a_number_or_nothing(z, unit, mean, std, decimals, significant):
    scale = Scale(unit=unit, mean=mean, std=std, decimals=decimals, significant=significant)
    text = scale.text(z)
    assert (text == "") == math.isnan(z)
    if text:
        assert "e" not in text.lower() and abs(float(text)) <= 1.0000001e30
