"""Cross-entropy and its Gaussian form: against loops in float64, against torch, and in their limits."""

import pytest
import torch
import torch.nn.functional as F
from helpers import loss_reference as reference

from ntl.losses import GaussianCrossEntropy
from ntl.losses.functional import cross_entropy, gaussian_cross_entropy


@pytest.mark.parametrize("value_of", [reference.DIGIT_OF, reference.VALUE_OF], ids=["digits", "uneven"])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 40.0])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_value_and_gradient_are_the_definitions(value_of, sigma, label_smoothing):
    logits, labels = reference.batch(seed=1, rows=2, length=6, value_of=value_of)
    options = {"sigma": sigma, "label_smoothing": label_smoothing}
    ours = gaussian_cross_entropy(logits, labels, reference.vocabulary(value_of), **options)
    theirs = reference.cross_entropy(logits, labels, value_of=value_of, **options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(reference.gradients(ours, logits), reference.gradients(theirs, logits))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(reduction):
    logits, labels = reference.batch(seed=2, rows=2)
    ours = GaussianCrossEntropy(reference.vocabulary(), sigma=1.0, reduction=reduction)(logits, labels)
    torch.testing.assert_close(ours, reference.cross_entropy(logits, labels, sigma=1.0, reduction=reduction))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_without_sigma_it_is_torchs(label_smoothing):
    logits, labels = reference.batch(seed=3)
    theirs = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing)
    torch.testing.assert_close(cross_entropy(logits, labels, label_smoothing=label_smoothing), theirs)


def test_a_narrow_gaussian_is_one_hot():
    logits, labels = reference.batch(seed=4)
    narrow = gaussian_cross_entropy(logits, labels, reference.vocabulary(), sigma=1e-3)
    torch.testing.assert_close(narrow, cross_entropy(logits, labels))


def test_a_wide_gaussian_is_uniform_over_the_numbers():
    logits, labels = reference.batch(seed=5, rows=1, length=1)
    labels = torch.full_like(labels, 4)
    wide = gaussian_cross_entropy(logits, labels, reference.vocabulary(), sigma=1e6)
    uniform = -logits.log_softmax(-1)[..., sorted(reference.DIGIT_OF)].mean()
    torch.testing.assert_close(wide, uniform)


def test_the_least_loss_is_at_the_gaussian_itself():
    numbers = reference.vocabulary()
    labels = torch.tensor([[8]])  # the digit 1
    target = torch.tensor(reference.gaussian(numbers.values.tolist(), 1.0, 1.0), dtype=torch.float64)
    logits = torch.full((1, 1, reference.WIDTH), -1e4, dtype=torch.float64)
    logits[0, 0, numbers.ids] = target.log()
    logits.requires_grad_()
    gradient = reference.gradients(gaussian_cross_entropy(logits, labels, numbers), logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_numbers_that_a_model_excludes_cost_nothing_where_the_target_has_no_weight():
    logits, labels = reference.batch(seed=6, rows=1, length=1)
    labels = torch.full_like(labels, 6)  # the digit 0
    excluded = logits.detach().clone()
    excluded[..., 7] = -torch.inf  # the digit 9, forty-five sigmas away
    loss = gaussian_cross_entropy(excluded.requires_grad_(), labels, reference.vocabulary(), sigma=0.2)
    assert loss.isfinite()
    assert reference.gradients(loss, excluded).isfinite().all()


def test_gradcheck():
    logits, labels = reference.batch(seed=7, rows=2, length=4)
    loss = GaussianCrossEntropy(reference.vocabulary(), sigma=0.8, label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)


def test_parts_beside_the_gaussian_hold_the_plain_cross_entropy():
    logits, labels = reference.batch(seed=8)
    total, parts = cross_entropy(logits, labels, reference.vocabulary(), sigma=1.0, return_parts=True)
    torch.testing.assert_close(parts["ce"], cross_entropy(logits, labels).detach())
    assert parts["gce"] == total
    assert not any(part.requires_grad for part in parts.values())
