"""DIST2Loss and DEL against their definitions, written out with loops in float64."""

import math

import pytest
import torch
from helpers import loss_reference as reference

from ntl.losses import Counts, CrossEntropyWithDEL, CrossEntropyWithDist2
from ntl.losses.successors import digit_entropy_loss, dist2_loss


def dist2(logits, labels, temperature=1.0):
    losses = []
    ids = sorted(reference.DIGIT_OF)
    for row, marks in zip(logits, labels.tolist(), strict=True):
        for scores, label in zip(row, marks, strict=True):
            if label not in reference.DIGIT_OF:
                continue
            y = reference.DIGIT_OF[label]
            weights = [math.exp(-((reference.DIGIT_OF[i] - y) ** 2) / temperature) for i in ids]
            everything = reference.probabilities(scores, range(len(scores)))
            losses.append(
                sum(
                    w / sum(weights) * (math.log(w / sum(weights)) - torch.log(everything[i]))
                    for w, i in zip(weights, ids, strict=True)
                )
            )
    return losses


def digit_entropy(logits, labels):
    losses = []
    ids = sorted(reference.DIGIT_OF)
    for row, marks in zip(logits, labels.tolist(), strict=True):
        for number in reference.runs(marks):
            for t, place in number:
                weight = 2 * (place + 1) if place >= 0 else 1.02 ** -(-place + 1)  # the j-th decimal is at place −j
                p = reference.probabilities(row[t], ids)
                loss = 0.0
                for share, i in zip(p, ids, strict=True):
                    right = torch.sigmoid(row[t][i]) if i == marks[t] else 1 - torch.sigmoid(row[t][i])
                    loss = loss - share * torch.log(right)
                losses.append(weight * loss / 10)
    return losses


CASES = [
    (dist2_loss, dist2, {}),
    (dist2_loss, dist2, {"temperature": 3.0}),
    (digit_entropy_loss, digit_entropy, {}),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_definition(ours, theirs, options, seed):
    logits, labels = reference.batch(seed)
    numbers = reference.vocabulary()
    losses = theirs(logits, labels, **options)
    expected = sum(losses) / len(losses)
    got = ours(logits, labels, numbers, **options)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(reference.gradients(got, logits), reference.gradients(expected, logits))
    torch.testing.assert_close(ours(logits, labels, numbers, reduction="sum", **options), sum(losses))
    torch.testing.assert_close(ours(logits, labels, numbers, count=7, **options), sum(losses) / 7)
    spread = ours(logits, labels, numbers, reduction="none", **options)
    assert spread.shape == labels.shape
    assert not spread[~numbers.mask(labels)].any()


def test_del_weighs_places():
    labels = torch.tensor([reference.spell("12.34")])
    logits = torch.zeros(1, 5, reference.WIDTH, dtype=torch.float64)
    losses = digit_entropy_loss(logits, labels, reference.vocabulary(), reduction="none")
    ratios = (losses / losses[0, 1] * 2).squeeze().tolist()  # in units of half the units' weight
    assert ratios == pytest.approx([4, 2, 0, 1.02**-2, 1.02**-3])


def test_dist2_is_least_at_its_target():
    labels = torch.tensor([reference.spell("5")])
    ids = sorted(reference.DIGIT_OF)
    logits = torch.full((1, 1, reference.WIDTH), -math.inf, dtype=torch.float64)
    for i in ids:
        logits[..., i] = -((reference.DIGIT_OF[i] - 5.0) ** 2)
    assert float(dist2_loss(logits, labels, reference.vocabulary())) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("loss", [dist2_loss, digit_entropy_loss])
def test_gradcheck(loss):
    logits, labels = reference.batch(4, rows=2, length=5)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, reference.vocabulary()), (logits,))


@pytest.mark.parametrize("loss", [dist2_loss, digit_entropy_loss])
def test_without_a_number_it_is_zero(loss):
    logits, _ = reference.batch(0, rows=1, length=3)
    labels = torch.tensor([[0, -100, 1]])
    value = loss(logits, labels, reference.vocabulary())
    assert value == 0 and not reference.gradients(value, logits).any()


@pytest.mark.parametrize(
    ("objective", "term", "weight"),
    [(CrossEntropyWithDist2, dist2, 0.1), (CrossEntropyWithDEL, digit_entropy, 0.01)],
)
def test_the_objective_adds_it_to_the_cross_entropy(objective, term, weight):
    logits, labels = reference.batch(1)
    made = objective(reference.vocabulary())
    losses = term(logits, labels)
    ce = reference.cross_entropy(logits, labels)
    result = made({"logits": logits}, {"labels": labels})
    torch.testing.assert_close(result.total, ce + weight * sum(losses) / len(losses))
    # halves of a batch with the counts of the whole add up to the whole
    counts = made.count(labels)
    parts = [made({"logits": logits[k : k + 1]}, {"labels": labels[k : k + 1]}, counts) for k in range(len(labels))]
    torch.testing.assert_close(sum(part.total for part in parts), result.total)
    assert counts == Counts((labels != -100).sum(), len(losses))
    # as anybody's Trainer calls it
    shifted = torch.cat([torch.full_like(labels[:, :1], -100), labels], 1)
    wide = torch.cat([logits, logits[:, :1]], 1)
    torch.testing.assert_close(made({"logits": wide}, shifted), result.total)
    off = objective(reference.vocabulary(), weight=0.0)({"logits": logits}, {"labels": labels})
    torch.testing.assert_close(off.total, ce)
    with pytest.raises(NotImplementedError, match="needs logits"):
        made.linear_loss(logits, logits, labels)


@pytest.mark.parametrize("options", [{"weight": -1.0}, {"weight": math.nan}, {"temperature": 0.0}])
def test_bad_options(options):
    with pytest.raises(ValueError, match="expected a finite number"):
        CrossEntropyWithDist2(reference.vocabulary(), **options)


def test_del_takes_digits_alone():
    with pytest.raises(ValueError, match="digits 0 to 9 alone"):
        CrossEntropyWithDEL(reference.vocabulary(reference.VALUE_OF))
