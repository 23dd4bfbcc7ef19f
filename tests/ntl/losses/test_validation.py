"""Bad input: every message says what was got, what was expected, and what to do."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch
from helpers import loss_reference as reference

import ntl.losses
from ntl.losses import (
    CrossEntropy,
    CrossEntropyWithNTL,
    GaussianCrossEntropy,
    LossOptions,
    NTLoss,
    NTLossDotProduct,
    NumberLevelLoss,
    NumberTokenLoss,
)
from ntl.losses.functional import cross_entropy, cross_entropy_with_ntl, number_level_loss, number_token_loss
from ntl.options import defaults

NUMBERS = reference.vocabulary()
NO_NUMBER = [math.nan, math.inf, -math.inf, "0.3", None, True, torch.tensor(0.3)]


@pytest.mark.parametrize("weight", [*NO_NUMBER, -0.1])
def test_weight(weight):
    with pytest.raises(ValueError, match=r"weight: got .*, expected a finite number of at least 0"):
        CrossEntropyWithNTL(NUMBERS, weight=weight)
    logits, labels = reference.batch()
    with pytest.raises(ValueError, match=r"weight: got "):
        cross_entropy_with_ntl(logits, labels, NUMBERS, weight=weight)


@pytest.mark.parametrize("sigma", [*(value for value in NO_NUMBER if value is not None), 0.0, -1.0])
def test_sigma(sigma):
    for make in (
        lambda: CrossEntropy(NUMBERS, sigma=sigma),
        lambda: CrossEntropyWithNTL(NUMBERS, sigma=sigma),
        lambda: GaussianCrossEntropy(NUMBERS, sigma=sigma),
        lambda: NumberTokenLoss(NUMBERS, sigma=sigma),
    ):
        with pytest.raises(ValueError, match=r"sigma(: got |=).*, expected a finite number (above|>) 0"):
            make()


@pytest.mark.parametrize("place_value", [*NO_NUMBER, 0.99, 0.0, -2.0])
def test_place_value(place_value):
    for loss in (CrossEntropyWithNTL, NumberTokenLoss):
        with pytest.raises(ValueError, match=r"place_value: got .*, expected a finite number of at least 1"):
            loss(NUMBERS, place_value=place_value)


@pytest.mark.parametrize("squash", [math.nan, math.inf, 0.5, "9", True])
def test_squash(squash):
    for make in (
        lambda: CrossEntropyWithNTL(NUMBERS, squash=squash),
        lambda: NumberTokenLoss(NUMBERS, squash=squash),
    ):
        with pytest.raises(ValueError, match=r"squash: got .*, expected a finite number of at least 1 or null"):
            make()
    with pytest.raises(ValueError, match=r"got squash_factor=.*, expected a finite number > 1"):
        NTLoss(NUMBERS, squash_factor=squash)


@pytest.mark.parametrize("label_smoothing", [math.nan, -0.1, 1.0, "0.1"])
def test_label_smoothing(label_smoothing):
    for loss in (CrossEntropy, CrossEntropyWithNTL, GaussianCrossEntropy):
        with pytest.raises(
            ValueError, match=r"label_smoothing: got .*, expected a finite number of at least 0 and below 1"
        ):
            loss(NUMBERS, label_smoothing=label_smoothing)


@pytest.mark.parametrize(("kind", "near"), [("hubber", "huber"), ("WAS", "was"), ("wass", "was"), ("mea", "mae")])
def test_a_misspelt_kind_names_the_nearest(kind, near):
    for loss in (CrossEntropyWithNTL, NumberTokenLoss):
        with pytest.raises(ValueError, match=f"kind: got '{kind}', expected one of was, .*did you mean .*{near}"):
            loss(NUMBERS, kind=kind)


def test_choices():
    with pytest.raises(ValueError, match=r"got reduction='avg', expected one of mean, sum, none"):
        NumberTokenLoss(NUMBERS, reduction="avg")
    with pytest.raises(ValueError, match=r"got reduction='summ'.*did you mean sum"):
        GaussianCrossEntropy(NUMBERS, reduction="summ")
    logits, labels = reference.batch()
    for loss in (NTLoss, NTLossDotProduct, NumberLevelLoss):
        with pytest.raises(ValueError, match=r"got reduction='avg'"):
            loss(NUMBERS)(logits, labels, reduction="avg")


@pytest.mark.parametrize("flag", ["false", 0, 1.01, None])
def test_switches(flag):
    for loss in (CrossEntropyWithNTL, NumberTokenLoss, NTLoss, NumberLevelLoss):
        with pytest.raises(ValueError, match=r"reweigh(: got |=).*, expected [Tt]rue or [Ff]alse"):
            loss(NUMBERS, reweigh=flag)
    with pytest.raises(ValueError, match=r"got float_level="):
        NumberLevelLoss(NUMBERS, float_level=flag)


@pytest.mark.parametrize("kind", ["mse", "mae", "huber"])
@pytest.mark.parametrize("option", ["squash", "sigma"])
def test_options_of_was_alone(kind, option):
    for loss in (CrossEntropyWithNTL, NumberTokenLoss):
        with pytest.raises(ValueError, match=f"got {option}=2.0 with kind='{kind}', expected kind='was'"):
            loss(NUMBERS, kind=kind, **{option: 2.0})


def test_options_that_exclude_each_other():
    with pytest.raises(ValueError, match=r"got squash=2.0 and sigma=1.0, expected one of them"):
        NumberTokenLoss(NUMBERS, squash=2.0, sigma=1.0)
    logits, labels = reference.batch()
    with pytest.raises(ValueError, match=r"got count with reduction='sum', expected 'mean'"):
        number_token_loss(logits, labels, NUMBERS, reduction="sum", count=3)


class Tokenizer:
    def get_vocab(self):
        return {}


def test_a_tokenizer_in_place_of_a_vocabulary():
    for loss in (CrossEntropy, CrossEntropyWithNTL, NumberTokenLoss, GaussianCrossEntropy):
        with pytest.raises(TypeError, match=r"got numbers of type Tokenizer, expected a NumberVocabulary"):
            loss(Tokenizer())
    logits, labels = reference.batch()
    with pytest.raises(ValueError, match=r"expected a NumberVocabulary"):
        cross_entropy(logits, labels, sigma=1.0)


CALLS = [
    lambda logits, labels, **more: number_token_loss(logits, labels, NUMBERS, **more),
    lambda logits, labels, **more: number_level_loss(logits, labels, NUMBERS, **more),
    lambda logits, labels, **more: cross_entropy_with_ntl(logits, labels, NUMBERS, **more),
    lambda logits, labels, **more: NTLoss(NUMBERS)(logits, labels, **more),
]


@pytest.mark.parametrize("call", CALLS)
def test_tensors(call):
    logits, labels = reference.batch()
    with pytest.raises(TypeError, match=r"got logits of torch.int64, expected floating point"):
        call(logits.long(), labels)
    with pytest.raises(TypeError, match=r"got labels of torch.float64, expected integers"):
        call(logits, labels.double())
    with pytest.raises(ValueError, match=r"got logits of shape \(3, 9, 24\) and labels of shape \(3, 8\)"):
        call(logits, labels[:, 1:])
    with pytest.raises(ValueError, match=r"got loss_weights of shape \(3,\), expected \(3, 9\)"):
        call(logits, labels, loss_weights=torch.ones(3))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"got loss_weights that are negative or not finite"):
            call(logits, labels, loss_weights=torch.full(labels.shape, bad))


@pytest.mark.parametrize("call", CALLS)
def test_ids_beyond_the_logits(call):
    logits, labels = reference.batch()
    with pytest.raises(
        ValueError, match=r"got a number token with id 20 for logits of 20 columns, expected ids below 20"
    ):
        call(logits[..., :20], labels)
    labels[0, 0] = 24
    with pytest.raises(ValueError, match=r"got label 24, expected 0 to 23 .* or ignore_index=-100"):
        call(logits, labels)
    labels[0, 0] = -1
    with pytest.raises(ValueError, match=r"got label -1"):
        call(logits, labels)


def test_outputs_and_labels_of_a_trainer():
    logits, labels = reference.batch()
    objective = CrossEntropyWithNTL(NUMBERS)
    with pytest.raises(TypeError, match=r"got labels of type NoneType, expected a tensor"):
        objective({"logits": logits}, None, num_items_in_batch=3)
    with pytest.raises(TypeError, match=r"got outputs of type tuple without logits"):
        objective((logits,), labels)


def test_options_are_checked_once_and_frozen():
    options = LossOptions(weight=0.3, squash=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.squash = 3.0
    with pytest.raises(ValueError, match=r"got squash=2.0 and sigma=1.0"):
        dataclasses.replace(options, sigma=1.0)


def test_an_objective_is_copied_with_another_implementation():
    objective = CrossEntropyWithNTL(NUMBERS, kind="mae")
    other = objective.with_implementation("fused")
    assert (objective.implementation, other.implementation) == ("auto", "fused")
    assert other.options is objective.options
    with pytest.raises(
        ValueError, match=r"got implementation='fuse', expected one of auto, plain, fused; did you mean"
    ):
        objective.with_implementation("fuse")


@pytest.mark.parametrize("loss", ["CrossEntropy", "CrossEntropyWithNTL", "CrossEntropyWithDist2", "XVal"])
def test_help_names_the_options_of_a_loss_and_their_defaults(loss):
    cls = getattr(ntl.losses, loss)
    parameters = dict(inspect.signature(cls).parameters)
    assert parameters.pop("numbers").kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {name: p.default for name, p in parameters.items()} == defaults(cls.Options)
    with pytest.raises(TypeError, match="wieght"):
        cls(NUMBERS, wieght=0.3)


def test_numpys_numbers_are_numbers():
    assert CrossEntropyWithNTL(NUMBERS, weight=np.float32(0.5), squash=np.int64(9)).options.squash == 9
