"""Products by numbers of digits: right answers, no pair twice, honest sizes where pairs are few."""

import itertools
from collections import Counter

import pytest

from data_prep.multiplication import Multiplication, pair, pair_count


def operands(row: dict[str, str]) -> tuple[int, int]:
    first, second = row["question"].removeprefix("What is ").removesuffix("?").split(" * ")
    return int(first), int(second)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    options = Multiplication(train_size=300, validation_size=30, test_size=40)
    return options.prepare(tmp_path_factory.mktemp("data"), progress=False)


def test_answers_and_digits_are_right(data):
    for split in data.splits:
        for row in data.rows(split):
            first, second = operands(row)
            assert int(row["answer"]) == first * second
            assert row["digits"] == f"{len(str(first))}x{len(str(second))}"


def test_no_pair_is_asked_twice_in_any_order_or_split(data):
    pairs = [frozenset(operands(row)) for split in data.splits for row in data.rows(split)]
    assert len(pairs) == len(set(pairs))


def test_every_combination_gets_its_questions(data):
    inside = {f"{a}x{b}" for a, b in itertools.product(range(1, 4), repeat=2)}
    train = Counter(row["digits"] for row in data.rows("train"))
    assert set(train) == inside and train["3x2"] == train["2x3"] == train["3x3"] == 300
    assert set(Counter(row["digits"] for row in data.rows("interpolate"))) == inside
    beyond = Counter(row["digits"] for row in data.rows("extrapolate"))
    assert beyond == {f"{a}x{b}": 40 for a, b in [(4, 1), (1, 4), (4, 2), (2, 4), (4, 3), (3, 4)]}


def test_few_pairs_are_capped_and_the_manifest_says_so(data):
    """One-digit numbers make 55 unordered pairs: a tenth each for validation and test, the rest for training."""
    capped = data.manifest["counts"]["capped"]
    assert capped["1x1"] == {"interpolate": 5, "validation": 5, "train": 45}
    for split, size in capped["1x1"].items():
        assert sum(row["digits"] == "1x1" for row in data.rows(split)) == size
    assert set(capped) == {"1x1"}  # 2x1 has 900 pairs, enough for twice 300 + 30 + 40


def test_paper_scale_covers_both_operands_up_to_six_digits(tmp_path):
    options = Multiplication(digits=5, extrapolation_digits=6, both=True, train_size=5, validation_size=2, test_size=2)
    data = options.prepare(tmp_path, progress=False)
    assert len({row["digits"] for row in data.rows("train")}) == 25
    beyond = {row["digits"] for row in data.rows("extrapolate")}
    assert len(beyond) == 11 and "6x6" in beyond


def test_the_seed_decides(tmp_path):
    def fingerprint(root: str, seed: int) -> str:
        options = Multiplication(train_size=50, validation_size=5, test_size=5, seed=seed)
        return options.prepare(tmp_path / root, progress=False).fingerprint

    assert fingerprint("a", 0) == fingerprint("b", 0) != fingerprint("a", 1)


@pytest.mark.parametrize("digits", [(1, 1), (1, 2), (2, 2)])
def test_pairs_are_numbered_one_to_one(digits):
    pairs = {pair(index, *digits) for index in range(pair_count(*digits))}
    ranges = [range(0 if d == 1 else 10 ** (d - 1), 10**d) for d in digits]
    expected = {(min(a, b), max(a, b)) for a, b in itertools.product(*ranges)}
    assert {(min(p), max(p)) for p in pairs} == expected and len(pairs) == len(expected)
