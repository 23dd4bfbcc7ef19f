"""The losses of xVal and of the regression head."""

import math

import pytest
import torch

from ntl.losses import RegressionHead, XVal, XValMask
from ntl.numbers import NumberVocabulary

NUMBER = 5
NUMBERS = NumberVocabulary(ids=torch.tensor([NUMBER]), values=torch.zeros(1), vocab_size=8)


def batch(seed=0):
    torch.manual_seed(seed)
    outputs = {"logits": torch.randn(3, 4, 8, requires_grad=True), "values": torch.randn(3, 4, requires_grad=True)}
    labels = torch.tensor([[NUMBER, 2, NUMBER, 1], [NUMBER, 1, -100, -100], [3, 1, -100, -100]])
    target = torch.where(labels == NUMBER, torch.randn(3, 4), math.nan)
    return outputs, {"labels": labels, "labels_value": target}


def by_hand(outputs, batch):
    ce = torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), batch["labels"].flatten())
    errors = [(outputs["values"][i, j] - batch["labels_value"][i, j]) ** 2 for i, j in ((0, 0), (0, 2), (1, 0))]
    return ce, sum(errors) / 3


def test_xval_is_half_of_each():
    outputs, given = batch()
    ce, mse = by_hand(outputs, given)
    result = XVal(NUMBERS)(outputs, given)
    torch.testing.assert_close(result.total, (ce + mse) / 2)
    assert result.parts == {"ce": pytest.approx(ce.item()), "mse": pytest.approx(mse.item())}
    torch.testing.assert_close(XVal(NUMBERS, weight=0.9)(outputs, given).total, 0.1 * ce + 0.9 * mse)
    torch.testing.assert_close(XValMask(NUMBERS)(outputs, given).total, ce + mse)
    torch.testing.assert_close(XValMask(NUMBERS, weight=3.0)(outputs, given).total, ce + 3 * mse)


@pytest.mark.parametrize("made", [XVal(NUMBERS), XValMask(NUMBERS), RegressionHead(NUMBERS)])
def test_parts_of_a_batch_add_up(made):
    outputs, given = batch()
    counts = made.count(given["labels"])
    assert (int(counts.labels), int(counts.numbers)) == (8, 3)
    whole = made(outputs, given)
    parts = [
        made({k: v[i : i + 1] for k, v in outputs.items()}, {k: v[i : i + 1] for k, v in given.items()}, counts)
        for i in range(3)  # the last has no number at all
    ]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    whole.total.backward()
    assert all(value.grad.isfinite().all() for name, value in outputs.items() if value.grad is not None)
    assert not outputs["values"].grad[given["labels"] != NUMBER].any()


def test_the_head_needs_no_logits():
    outputs, given = batch()
    result = RegressionHead(NUMBERS)({"values": outputs["values"]}, given)
    torch.testing.assert_close(result.total, by_hand(outputs, given)[1])


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_the_share_is_a_share(weight):
    with pytest.raises(ValueError, match="weight"):
        XVal(NUMBERS, weight=weight)
