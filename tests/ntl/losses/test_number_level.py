"""The loss on whole numbers, against loops over spelt-out numbers."""

import re

import pytest
import torch
from helpers import loss_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.losses import NumberLevelLoss
from ntl.losses.functional import number_level_loss

TEXTS = ["12 x 345", "7", "0.5 1.2.3", "12.", ".5 90", "no number", "3..4", "1.5", "007 00"]


def numbers_batch(seed=0, texts=TEXTS, dtype=torch.float64):
    labels = torch.tensor([reference.spell(text, max(map(len, texts))) for text in texts])
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*labels.shape, reference.WIDTH, generator=generator, dtype=torch.float64)
    return (3 * logits).to(dtype).requires_grad_(), labels


@pytest.mark.parametrize("float_level", [False, True])
@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradient_are_the_definitions(float_level, reweigh, reduction, weighted):
    logits, labels = numbers_batch()
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) if weighted else None
    options = {"float_level": float_level, "reweigh": reweigh, "reduction": reduction}
    ours = number_level_loss(logits, labels, reference.vocabulary(), loss_weights=weights, **options)
    theirs = reference.number_level_loss(logits, labels, weights=weights, **options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(reference.gradients(ours.sum(), logits), reference.gradients(theirs.sum(), logits))


def test_how_many_numbers_there_are():
    logits, labels = numbers_batch()
    for float_level, expected in ((False, [2, 1, 5, 1, 2, 0, 2, 2, 2]), (True, [2, 1, 2, 1, 2, 0, 2, 1, 2])):
        loss = number_level_loss(
            logits, labels, reference.vocabulary(), float_level=float_level, reduction="none", reweigh=True
        )
        assert (loss > 0).sum(1).tolist() == expected


def test_a_wrong_first_digit_costs_more_than_a_wrong_last_one():
    labels = torch.tensor([reference.spell("500")])
    losses = []
    for wrong in ("400", "510", "501", "500"):
        logits = torch.nn.functional.one_hot(torch.tensor([reference.spell(wrong)]), reference.WIDTH) * 100.0
        losses.append(float(number_level_loss(logits, labels, reference.vocabulary())))
    assert losses == pytest.approx([100 / 900, 10 / 1010, 1 / 1001, 0], abs=1e-6)


def test_numbers_of_a_hundred_digits():
    logits, labels = numbers_batch(texts=["7" * 100], dtype=torch.float32)
    loss = number_level_loss(logits, labels, reference.vocabulary())
    assert loss.isfinite()
    assert reference.gradients(loss, logits).isfinite().all()
    torch.testing.assert_close(loss.double(), reference.number_level_loss(logits.double(), labels), rtol=1e-5, atol=0)


def test_gradcheck():
    logits, labels = numbers_batch(texts=["12.3 4", "56.78."])
    loss = NumberLevelLoss(reference.vocabulary(), float_level=True, reweigh=True)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)


def test_it_needs_digits():
    with pytest.raises(ValueError, match="expected the digits 0 to 9"):
        NumberLevelLoss(reference.vocabulary(reference.VALUE_OF))


def read_slowly(text, float_level):
    """The numbers in a text: where each begins, and its digits with their places in the text."""
    found = re.finditer(r"[0-9]+(?:\.[0-9]+)*" if float_level else "[0-9]+", text)
    for match in found:
        digits = [(match.start() + k, int(char)) for k, char in enumerate(match.group()) if char != "."]
        yield digits


@settings(deadline=None, max_examples=100)
@given(text=st.text("0123456789..  x", min_size=1, max_size=14), float_level=st.booleans(), seed=st.integers(0, 9))
def test_a_slow_reader_of_the_label_text_finds_the_same_numbers_and_errors(text, float_level, seed):
    logits, labels = numbers_batch(seed, texts=[text])
    got = number_level_loss(logits, labels, reference.vocabulary(), float_level=float_level, reduction="none")[0]
    expected = [0.0] * len(text)
    digit_ids = [reference.ID_OF[str(digit)] for digit in range(10)]
    for digits in read_slowly(text, float_level):
        whole = int("".join(str(digit) for _, digit in digits))
        guess = 0.0
        for position, _ in digits:
            shares = logits[0, position, digit_ids].softmax(-1).tolist()
            guess = 10 * guess + sum(digit * share for digit, share in enumerate(shares))
        expected[digits[0][0]] = abs(guess - whole) / (guess + whole)
    assert got.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    mean = number_level_loss(logits, labels, reference.vocabulary(), float_level=float_level)
    found = list(read_slowly(text, float_level))
    assert mean.item() == pytest.approx(sum(expected) / max(1, len(found)), rel=1e-9, abs=1e-12)
