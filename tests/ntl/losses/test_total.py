"""CE + λ·NTL: what the total is made of, how it adds up over micro-batches, and what it is when there is no number."""

import pytest
import torch
from helpers import loss_reference as reference
from torch import nn

from ntl.losses import Counts, CrossEntropy, CrossEntropyWithNTL, LossParts
from ntl.losses.functional import cross_entropy, cross_entropy_with_ntl, number_level_loss, number_token_loss

VARIANTS = [
    {},
    {"kind": "mse", "weight": 2.0},
    {"kind": "huber", "reweigh": True},
    {"squash": 2.0, "place_value": 2.0},
    {"sigma": 1.0, "label_smoothing": 0.1},
]


class Outputs:
    def __init__(self, logits):
        self.logits = logits


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_total_is_made_of_its_parts(options):
    logits, labels = reference.batch(seed=1)
    numbers = reference.vocabulary()
    total, parts = cross_entropy_with_ntl(logits, labels, numbers, **options, return_parts=True)
    options = dict(options)
    weight, smoothing = options.pop("weight", 0.3), options.pop("label_smoothing", 0.0)
    ce = cross_entropy(logits, labels, numbers, sigma=options.get("sigma"), label_smoothing=smoothing)
    ntl = number_token_loss(logits, labels, numbers, **options)
    torch.testing.assert_close(total, ce + weight * ntl)
    torch.testing.assert_close(parts["ntl"], ntl.detach())
    torch.testing.assert_close(parts["gce" if "sigma" in options else "ce"], ce.detach())


def test_loss_weights_weigh_the_number_token_loss_alone():
    logits, labels = reference.batch(seed=2)
    weights = torch.rand(labels.shape)
    numbers = reference.vocabulary()
    _, parts = cross_entropy_with_ntl(logits, labels, numbers, loss_weights=weights, return_parts=True)
    assert parts["ce"] == cross_entropy(logits, labels)
    assert parts["ntl"] == number_token_loss(logits, labels, numbers, loss_weights=weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "sigma"), [("was", None), ("mse", None), ("was", 1.0)])
def test_weight_zero_is_cross_entropy_bit_by_bit(dtype, kind, sigma):
    logits, labels = reference.batch(seed=3, dtype=dtype)
    numbers = reference.vocabulary()
    plain = CrossEntropy(numbers, sigma=sigma)(Outputs(logits), {"labels": labels})
    zero = CrossEntropyWithNTL(numbers, kind=kind, weight=0.0, sigma=sigma)(Outputs(logits), {"labels": labels})
    assert torch.equal(zero.total, plain.total)
    assert torch.equal(reference.gradients(zero.total, logits), reference.gradients(plain.total, logits))
    assert zero.parts["ntl"] > 0  # still reported


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_two_micro_batches_of_unequal_counts_equal_one_large_batch(options):
    logits, labels = reference.batch(seed=4, rows=4, length=8)
    labels[0] = -100
    labels[0, 0] = 4
    labels[1] = torch.tensor([0, 1, 3, 4, -100, -100, -100, -100])
    objective = CrossEntropyWithNTL(reference.vocabulary(), **options)
    whole = objective(Outputs(logits), {"labels": labels})
    counts = objective.count(labels)
    halves = [slice(0, 2), slice(2, 4)]
    assert len({tuple(map(int, objective.count(labels[half]))) for half in halves}) == 2
    split = [objective(Outputs(logits[half]), {"labels": labels[half]}, counts) for half in halves]
    total = sum(part.total for part in split)
    torch.testing.assert_close(total, whole.total)
    torch.testing.assert_close(reference.gradients(total, logits), reference.gradients(whole.total, logits))
    for name, value in whole.parts.items():
        torch.testing.assert_close(sum(part.parts[name] for part in split), value)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_micro_batch_without_numbers_has_its_share_of_zero(options):
    logits, labels = reference.batch(seed=5, rows=2)
    words = torch.full_like(labels, 3)
    objective = CrossEntropyWithNTL(reference.vocabulary(), **options)
    counts = Counts(*(a + b for a, b in zip(objective.count(labels), objective.count(words), strict=True)))
    result = objective(Outputs(logits), {"labels": words}, counts)
    assert result.parts["ntl"] == 0
    assert result.total == result.parts["gce" if "sigma" in options else "ce"]


LOSSES = {
    "ntl": lambda *args, **options: number_token_loss(*args, **options),
    "reweighed": lambda *args, **options: number_token_loss(*args, reweigh=True, place_value=2.0, **options),
    "lp": lambda *args, **options: number_token_loss(*args, kind="mse", **options),
    "smoothed": lambda *args, **options: number_token_loss(*args, sigma=1.0, **options),
    "level": lambda *args, **options: number_level_loss(*args, reweigh=True, float_level=True, **options),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("fill", [3, -100], ids=["no number", "all ignored"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_nothing_to_average_is_zero_with_a_gradient_path(name, fill, reduction, dtype):
    logits, labels = reference.batch(dtype=dtype, scale=1e4)
    labels = torch.full_like(labels, fill)
    loss = LOSSES[name](logits, labels, reference.vocabulary(), reduction=reduction)
    assert (loss == 0).all()
    assert loss.shape == (labels.shape if reduction == "none" else ())
    gradient = reference.gradients(loss.sum(), logits)
    assert (gradient == 0).all()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("counts", [None, Counts(0, 0), Counts(torch.tensor(0), torch.tensor(0))], ids=str)
def test_a_total_with_all_labels_ignored_is_zero_with_a_gradient_path(options, counts):
    logits, labels = reference.batch()
    total = cross_entropy_with_ntl(
        logits, torch.full_like(labels, -100), reference.vocabulary(), **options, counts=counts
    )
    assert total == 0
    assert (reference.gradients(total, logits) == 0).all()


def test_all_loss_weights_zero():
    logits, labels = reference.batch()
    for loss in LOSSES.values():
        result = loss(logits, labels, reference.vocabulary(), loss_weights=torch.zeros(labels.shape))
        assert result == 0
        assert (reference.gradients(result, logits) == 0).all()


def test_an_empty_batch():
    logits = torch.zeros(0, 5, reference.WIDTH, requires_grad=True)
    labels = torch.zeros(0, 5, dtype=torch.long)
    assert cross_entropy_with_ntl(logits, labels, reference.vocabulary(), place_value=2.0, reweigh=True) == 0
    assert number_level_loss(logits, labels, reference.vocabulary()) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(dtype):
    """Half and single precision are computed in float32, double in double; gradients are in the logits' type."""
    logits, labels = reference.batch(seed=6, dtype=dtype)
    exact = logits.detach().double()
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    numbers = reference.vocabulary()
    total, parts = cross_entropy_with_ntl(logits, labels, numbers, reweigh=True, return_parts=True)
    assert {total.dtype, *(part.dtype for part in parts.values())} == {expected}
    assert reference.gradients(total, logits).dtype == dtype
    # the only error is that of the input, which `exact` shares
    torch.testing.assert_close(
        total.double(), cross_entropy_with_ntl(exact, labels, numbers, reweigh=True), rtol=1e-6, atol=0
    )
    level = number_level_loss(logits, labels, numbers)
    torch.testing.assert_close(level.double(), number_level_loss(exact, labels, numbers), rtol=1e-6, atol=0)


def test_parts_are_copies():
    """Trainer scales a loss in place; what is logged must not change with it."""
    logits, labels = reference.batch()
    for objective in (CrossEntropy(reference.vocabulary()), CrossEntropyWithNTL(reference.vocabulary(), weight=0.0)):
        result = objective(Outputs(logits), {"labels": labels})
        before = {name: float(part) for name, part in result.parts.items()}
        result.total *= 8
        assert before == {name: float(part) for name, part in result.parts.items()}


def test_objectives_are_modules_without_parameters():
    objective = CrossEntropyWithNTL(reference.vocabulary(), kind="mae")
    assert isinstance(objective, nn.Module)
    assert not objective.state_dict()
    assert "kind='mae'" in repr(objective)
    logits, labels = reference.batch()
    assert isinstance(objective({"logits": logits}, {"labels": labels}), LossParts)
