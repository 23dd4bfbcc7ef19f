"""Which labels make up one number, without loops over positions and without waiting for the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl.numbers import NumberVocabulary


def is_dot(labels: Tensor, numbers: NumberVocabulary) -> Tensor:
    """Return True where a label is the bare token `.`."""
    return torch.stack([labels == dot for dot in (*numbers.dot_ids, -1)]).any(0)  # −1: never a label, never empty


def before(x: Tensor, steps: int = 1) -> Tensor:
    """Return, at every position of the last axis, the entry `steps` before; zero where there is none."""
    return F.pad(x, (steps, 0))[..., : x.shape[-1]]


def number_of(start: Tensor) -> Tensor:
    """Return the index of the number that each position belongs to (or follows), unique over the batch."""
    return (start.flatten().cumsum(0) - 1).clamp_min(0).view(start.shape)


def running(mask: Tensor) -> Tensor:
    """Return how many positions of the mask stand before each, counted over the whole batch."""
    return (mask.flatten().cumsum(0) - mask.flatten().long()).view(mask.shape)


def per_number(x: Tensor, number: Tensor) -> Tensor:
    """Sum `x` (…) over the positions of each number, into as many sums as positions: a shape known beforehand."""
    return x.new_zeros(x.numel()).index_add(0, number.flatten(), x.flatten())


def place_weights(labels: Tensor, numbers: NumberVocabulary, base: float, dtype: torch.dtype) -> Tensor:
    """Return base^place for number labels, scaled to mean 1 within each number; meaningless elsewhere."""
    mask, dot, places = numbers.mask(labels), is_dot(labels, numbers), numbers.places(labels)
    # A number goes on while places fall from one digit to the next, with at most a decimal point between them. A token
    # with a space marker begins another, whatever its place: `7` `▁0.5`.
    after_digit = before(mask) & (places < before(places))
    after_dot = before(dot) & before(mask, 2) & (places < before(places, 2))
    start = mask & (numbers.marked(labels) | ~(after_digit | after_dot))
    number = number_of(start)
    # relative to the first digit, so that long numbers do not overflow
    first = per_number(places * start, number)[number]
    weights = torch.where(mask, base ** (places - first).to(dtype), 0.0)
    mean = per_number(weights, number) / per_number(mask.to(dtype), number).clamp_min(1)
    return weights / torch.where(mask, mean[number], 1.0)
