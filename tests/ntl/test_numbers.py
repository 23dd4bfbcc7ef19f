"""Which tokens are numbers, where a digit stands in its number, and numbers in text."""

import copy
import pickle
import re
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.numbers import NumberVocabulary, numeral

NOT_NUMBERS = [
    "²", "½", "٣", "５", "1_000", "1e5", "inf", "nan", "infinity", "0x1F", "IV", "Ⅷ", ".", "-", "▁2018.", "5.", ".5",
    "-5", "+5", "▁-5", "1.2.3", "1,000", "", "▁", "Ġ", " ", "5 ", "5▁", "5\n", "\n5", "▁Ġ5", "①", "<5>", "5%", "१",
]  # fmt: skip
NUMBERS = {"7": 7, "▁7": 7, "Ġ7": 7, " 7": 7, "2024": 2024, "▁2024": 2024, "3.14": 3.14, "007": 7, "0.5": 0.5}


class Vocabulary:
    """The whole interface that a tokenizer must have."""

    def __init__(self, tokens):
        self.tokens = list(tokens)

    def get_vocab(self):
        return {token: index for index, token in enumerate(self.tokens)}


@pytest.mark.parametrize("token", NOT_NUMBERS)
def test_not_a_number(token):
    assert numeral(token) is None
    numbers = NumberVocabulary.from_tokenizer(Vocabulary([token, "8"]), digits_only=False)
    assert numbers.ids.tolist() == [1]


@pytest.mark.parametrize("token", NUMBERS)
def test_a_number(token):
    numbers = NumberVocabulary.from_tokenizer(Vocabulary(["x", token]), digits_only=False)
    assert (numbers.ids.tolist(), numbers.values.tolist()) == ([1], [NUMBERS[token]])
    assert numbers.values.dtype == torch.float64


def test_digits_only_takes_the_ten_unmarked_digits():
    tokens = [*NUMBERS, *NOT_NUMBERS, *(f"▁{d}" for d in range(10)), *reversed([str(d) for d in range(10) if d != 7])]
    numbers = NumberVocabulary.from_tokenizer(Vocabulary(dict.fromkeys(tokens)))
    assert sorted(numbers.tokens) == list("0123456789")
    assert numbers.ids.tolist() == sorted(numbers.ids.tolist())
    assert [int(token) for token in numbers.tokens] == numbers.values.tolist()


@pytest.mark.parametrize(
    ("pieces", "others"),
    [
        (["It", "Ġ7", "Ġor", "Ġ2024", "."], "Ġ7 Ġ2024"),
        (["▁It", "▁", "20", "24", "31.5", "7"], "20 24 31.5"),
        (["It", "Ġ", "7", "Ġ", "1", "2", "²", "."], None),
    ],
)
def test_digits_only_warns_where_the_tokenizer_writes_numbers_with_other_tokens(pieces, others):
    tokenizer = Vocabulary("0123456789")
    tokenizer.tokenize = lambda text: pieces
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        NumberVocabulary.from_tokenizer(tokenizer)
        NumberVocabulary.from_tokenizer(tokenizer, digits_only=False)
    assert len(caught) == (others is not None)
    if others:
        assert f"tokens such as {others}, and digits_only=True" in str(caught[0].message)
        assert caught[0].filename == __file__


def test_missing_digits_and_no_numbers():
    with pytest.raises(ValueError, match=r"without 3 9, expected the ten tokens.*digits_only=False"):
        NumberVocabulary.from_tokenizer(Vocabulary([*"01245678", "▁3", "▁9"]))
    with pytest.raises(ValueError, match="none of them a number"):
        NumberVocabulary.from_tokenizer(Vocabulary(["a", "1e5", "9" * 400]), digits_only=False)


def test_padded_output_layer():
    numbers = NumberVocabulary.from_tokenizer(Vocabulary("0123456789"), vocab_size=64)
    assert numbers.vocab_size == 64
    assert numbers.lookup(torch.tensor([[9, 63, 64, 10_000, -100, -1]])).tolist() == [[9, -1, -1, -1, -1, -1]]
    assert numbers.resized(128).lookup(torch.tensor([9, 127])).tolist() == [9, -1]
    with pytest.raises(ValueError, match="vocab_size=9"):
        NumberVocabulary.from_tokenizer(Vocabulary("0123456789"), vocab_size=9)


def test_lookup_keeps_the_shape_and_the_order_of_ids():
    numbers = NumberVocabulary.from_tokenizer(Vocabulary(["a", "9", "b", "2"]), digits_only=False)
    labels = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.int32)
    assert numbers.lookup(labels).tolist() == [[[-1, 0], [-1, 1]]]
    assert numbers.values[numbers.lookup(labels)[numbers.mask(labels)]].tolist() == [9, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [2, 1], "values": [1.0, 2.0]}, "ascending"),
        ({"ids": [1, 1], "values": [1.0, 2.0]}, "ascending"),
        ({"ids": [], "values": []}, "at least 1"),
        ({"ids": [1, 2], "values": [1.0]}, "one length"),
        ({"ids": [-1, 2], "values": [1.0, 2.0]}, "from 0 to"),
        ({"ids": [1], "values": [float("inf")]}, "finite"),
        ({"ids": [1], "values": [1.0], "tokens": ("1", "2")}, "expected one each"),
    ],
)
def test_a_malformed_vocabulary_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        NumberVocabulary(**{"vocab_size": 5, **arguments})


def test_copies_pickle_and_inference_mode():
    with torch.inference_mode():
        numbers = NumberVocabulary.from_tokenizer(Vocabulary([*"0123456789", "."]))
        numbers.places(torch.tensor([[1]]))
    for other in (numbers, copy.deepcopy(numbers), pickle.loads(pickle.dumps(numbers)), numbers.to("cpu")):
        assert other.places(torch.tensor([[1, 2]])).tolist() == [[1, 0]]
    weights = torch.ones(10, dtype=torch.float64, requires_grad=True)
    (weights * numbers.values).sum().backward()  # values saved for backward although made in inference mode
    assert weights.grad.tolist() == numbers.values.tolist()
    assert numbers.to("cpu") is numbers
    assert numbers.to("meta") is numbers.to("meta")
    assert numbers.to("meta").ids.device.type == "meta"


# Digits alone, and a vocabulary with everything that complicates places: marked twins, long tokens, interior dots.
DIGIT_TOKENS = [*"0123456789", ".", "-", " ", "x"]
SUBWORD_TOKENS = [*DIGIT_TOKENS, "12", "345", "▁7", "▁2024", "3.14", "▁0.5", "5.", ".5", "▁."]


def places_slowly(tokens: list[str]) -> list[int | None]:
    """Read one row of tokens by writing it out as text, finding numbers with a regular expression, and counting.

    Tokens that are no numbers and not a bare dot are written `#`; an ignored position is None.
    """
    text, ends = "", []
    for token in tokens:
        if token is not None and numeral(token):
            text += token.replace("▁", "#")
            ends.append(len(text) - 1)
        else:
            text += "." if token == "." else "#"
            ends.append(None)
    place = {}
    for match in re.finditer(r"[0-9]+(\.[0-9]+)?", text):
        whole, _, decimals = match.group().partition(".")
        for k in range(len(whole)):
            place[match.start() + k] = len(whole) - 1 - k
        for k in range(len(decimals)):
            place[match.start() + len(whole) + 1 + k] = -1 - k
    return [None if end is None else place[end] for end in ends]


def places_of(rows, vocabulary, digits_only):
    """Return the places of padded rows of tokens, None where there is no number."""
    numbers = NumberVocabulary.from_tokenizer(Vocabulary(vocabulary), vocab_size=40, digits_only=digits_only)
    length = max(map(len, rows))
    ids = [[-100 if t is None else vocabulary.index(t) for t in row] + [-100] * (length - len(row)) for row in rows]
    labels = torch.tensor(ids)
    places, mask = numbers.places(labels), numbers.mask(labels)
    assert places.shape == labels.shape and places.dtype == torch.int64
    assert not places[~mask].any()
    return [[int(p) if m else None for p, m in zip(*row, strict=True)] for row in zip(places, mask, strict=True)]


@pytest.mark.parametrize("vocabulary", [DIGIT_TOKENS, SUBWORD_TOKENS], ids=["digits", "subword"])
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_places_against_a_slow_reading(vocabulary, data):
    # dots and digits are drawn more often than the rest, so that chains of them are common
    token = st.one_of(st.sampled_from([*"019", ".", "."]), st.sampled_from([*vocabulary, None]))
    rows = data.draw(st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=4))
    got = places_of(rows, vocabulary, digits_only=vocabulary is DIGIT_TOKENS)
    for row, places in zip(rows, got, strict=True):
        assert places[: len(row)] == places_slowly(row)
        assert places[len(row) :] == [None] * (len(places) - len(row))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("1234", [3, 2, 1, 0]),
        ("007", [2, 1, 0]),
        ("12.34", [1, 0, None, -1, -2]),
        ("5.", [0, None]),
        (".5", [None, 0]),
        ("1.2.3", [0, None, -1, None, 0]),
        ("1.2.34.5", [0, None, -1, None, 1, 0, None, -1]),
        ("1..23", [0, None, None, 1, 0]),
        ("12 34", [1, 0, None, 1, 0]),
        ("x-12.5x7", [None, None, 1, 0, None, -1, None, 0]),
        ([*"12", None, *"34"], [1, 0, None, 1, 0]),
        (["12", "345"], [3, 0]),
        (["▁7", "▁2024"], [0, 0]),
        (["12", "▁7", ".", "5"], [0, 0, None, -1]),
        (["12", "3.14"], [1, -2]),
        (["1", ".", "3.14"], [0, None, 0]),  # 1.3, then 14
        (["1", "▁.", "5"], [0, None, 0]),
    ],
)
def test_places_by_hand(row, expected):
    digits = all(token in DIGIT_TOKENS for token in row if token)
    for vocabulary in [DIGIT_TOKENS, SUBWORD_TOKENS] if digits else [SUBWORD_TOKENS]:
        assert places_of([list(row)], vocabulary, digits_only=vocabulary is DIGIT_TOKENS) == [expected]


def test_places_of_plain_values_rows_and_nothing():
    numbers = NumberVocabulary(ids=[3, 4, 5], values=[7.0, 42.0, 0.5], vocab_size=6)
    assert numbers.places(torch.tensor([4, 3, 0, 3, 5])).tolist() == [1, 0, 0, 1, -1]
    assert numbers.places(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)
    with pytest.raises(ValueError, match=r"got labels of shape \(1, 1, 1\)"):
        numbers.places(torch.zeros(1, 1, 1, dtype=torch.int64))
