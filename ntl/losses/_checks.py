"""Checks of options, shared by the functions and by the constructors, so that both say the same of a bad value."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ntl.numbers import DIGITS, NumberVocabulary
from ntl.text import expected_one_of

REDUCTIONS = ("mean", "sum", "none")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise a ValueError naming the nearest of `choices` unless `value` is one of them."""
    if value not in choices:
        raise ValueError(f"got {name}={value!r}, {expected_one_of(value, choices)}")


def check_real(
    name: str, value: Any, advice: str, *, least: float = 0.0, strict: bool = False, below: float = math.inf
) -> None:
    """Raise a ValueError unless `value` is a finite number ≥ `least` (> with `strict`) and < `below`."""
    # by behaviour, not by class: numpy's numbers are as good as Python's; a truth value or a text is a mistake
    number = not isinstance(value, bool | str | bytes | Tensor) and hasattr(value, "__float__")
    if not (number and math.isfinite(value) and (value > least if strict else value >= least) and value < below):
        upper = f" and < {below:g}" if math.isfinite(below) else ""
        raise ValueError(
            f"got {name}={value!r}, expected a finite number {'>' if strict else '≥'} {least:g}{upper}: {advice}"
        )


def check_sigma(sigma: Any) -> None:
    """Check the standard deviation of a Gaussian target, in units of the tokens' values."""
    check_real("sigma", sigma, "the paper uses 0.5, 1 and 2; a one-hot target is plain cross-entropy", strict=True)


def check_flag(name: str, value: Any) -> None:
    """Raise a ValueError unless `value` is True or False ("false" and 0 would pass silently otherwise)."""
    if not isinstance(value, bool):
        raise ValueError(f"got {name}={value!r}, expected True or False: it is a switch, not a factor")


def check_vocabulary(numbers: Any) -> None:
    """Raise a TypeError unless `numbers` is a NumberVocabulary (a tokenizer is the likely mistake)."""
    if not isinstance(numbers, NumberVocabulary):
        raise TypeError(
            f"got numbers of type {type(numbers).__name__}, expected a NumberVocabulary: make one with "
            "NumberVocabulary.from_tokenizer(tokenizer, vocab_size)"
        )


def check_digits(numbers: NumberVocabulary) -> None:
    """Raise a ValueError unless every number token is a digit."""
    other = next((token for token in numbers.tokens if len(token) != 1 or token not in DIGITS), None)
    if other is not None:
        raise ValueError(
            f"got {other!r} among the {len(numbers)} number tokens, expected the digits 0 to 9 alone: the value of a "
            "whole number is made up from its digits; use the digits encoding, or digits_only=True"
        )


def check_tensors(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary | None,
    ignore_index: int,
    loss_weights: Tensor | None = None,
) -> None:
    """Check shapes, types and ids.

    Raises:
        TypeError: logits are not floating point, or labels are no integers.
        ValueError: shapes do not fit, an id is no column of the logits, or a loss weight is negative or not finite.
    """
    if not logits.is_floating_point():
        raise TypeError(f"got logits of {logits.dtype}, expected floating point: pass the model's raw scores")
    if logits.ndim < 2 or labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"got logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}, expected (…, V) "
            "and (…): one label for each row of logits, aligned with it"
        )
    _check_ids(logits.shape[-1], labels, numbers, ignore_index, loss_weights)


def check_head(
    hidden: Tensor,
    lm_head_weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    numbers: NumberVocabulary | None,
    ignore_index: int,
    loss_weights: Tensor | None = None,
) -> None:
    """Check what stands in place of logits, and the rest as `check_tensors` does; the same errors."""
    for name, tensor in (("hidden", hidden), ("lm_head_weight", lm_head_weight), ("bias", bias)):
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"got {name} of {tensor.dtype}, expected floating point: pass hidden states and weights")
    if hidden.ndim < 2 or labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"got hidden of shape {tuple(hidden.shape)} and labels of shape {tuple(labels.shape)}, expected (…, D) "
            "and (…): one label for each hidden state, aligned with it"
        )
    if lm_head_weight.ndim != 2 or lm_head_weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"got lm_head_weight of shape {tuple(lm_head_weight.shape)} for hidden states of {hidden.shape[-1]} "
            f"components, expected (V, {hidden.shape[-1]}): pass the weight of the model's output layer as it is"
        )
    if bias is not None and bias.shape != lm_head_weight.shape[:1]:
        raise ValueError(
            f"got a bias of shape {tuple(bias.shape)}, expected {tuple(lm_head_weight.shape[:1])}: one per column"
        )
    _check_ids(len(lm_head_weight), labels, numbers, ignore_index, loss_weights)


def _check_ids(
    width: int, labels: Tensor, numbers: NumberVocabulary | None, ignore_index: int, loss_weights: Tensor | None
) -> None:
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"got labels of {labels.dtype}, expected integers: pass token ids")
    # vocab_size bounds every id and is known without asking the device, so the ids are read only if it does not fit
    if numbers is not None and width < numbers.vocab_size and (last := int(numbers.ids[-1])) >= width:
        raise ValueError(
            f"got a number token with id {last} for logits of {width} columns, expected ids below {width}: resize the "
            "model's output layer to the tokenizer, or build the number vocabulary from the model's own tokenizer"
        )
    # On an accelerator this would wait for the device at every step; indexing reports it there.
    if labels.device.type == "cpu":
        outside = (labels != ignore_index) & ((labels < 0) | (labels >= width))
        if bool(outside.any()):
            raise ValueError(
                f"got label {int(labels[outside][0])}, expected 0 to {width - 1} (columns of the logits) or "
                f"ignore_index={ignore_index}: check the tokenizer and the padding of the labels"
            )
    if loss_weights is not None:
        if loss_weights.shape != labels.shape:
            raise ValueError(
                f"got loss_weights of shape {tuple(loss_weights.shape)}, expected {tuple(labels.shape)}: one weight "
                "for each label"
            )
        if bool(((loss_weights < 0) | ~loss_weights.isfinite()).any()):
            raise ValueError("got loss_weights that are negative or not finite, expected ≥ 0: 0 leaves a position out")
