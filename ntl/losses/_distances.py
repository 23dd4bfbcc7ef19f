"""What the number token loss is at one position: shared by the plain and the fused implementation.

Shapes: scores (…, K) of the number tokens, values (K,), target (…) the labels' values; losses (…).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl.losses.options import LossOptions

# Elementwise d(prediction, target) of the NTL-Lp kinds.
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": partial(F.mse_loss, reduction="none"),
    "mae": partial(F.l1_loss, reduction="none"),
    "huber": partial(F.huber_loss, reduction="none", delta=1.0),
}
# With `reweigh`, probability outside the numbers costs this many times the largest distance (as in ntloss).
OUTSIDE = 1.01


def token_loss(
    scores: Tensor,
    values: Tensor,
    target: Tensor,
    options: LossOptions,
) -> Tensor:
    """Return the loss at every position, before `reweigh` and any weight; see `functional.number_token_loss`."""
    p = scores.softmax(-1)
    if options.kind == "was" and options.sigma is not None:
        return _cumulative_gap(p - gaussian(values, target, options.sigma), values)
    if options.kind == "was":
        return (p * token_distance(values, target, options.squash)).sum(-1)
    return _lp(options.kind)((p * values).sum(-1), target)


def largest_distance(values: Tensor, options: LossOptions) -> Tensor:
    """Return D, the largest distance that two number tokens have."""
    low, high = values.min(), values.max()
    if options.kind == "was":
        return token_distance(values, low, options.squash).max()
    distance = _lp(options.kind)
    return torch.maximum(distance(low, high).abs(), distance(high, low).abs())


def reweigh(loss: Tensor, log_mass: Tensor, largest: Tensor) -> Tensor:
    """Return ℓ·m + 1.01·D·(1 − m), m from log m for the sake of precision near 1."""
    return loss * log_mass.exp() - OUTSIDE * largest * log_mass.expm1()


def gaussian(values: Tensor, target: Tensor, sigma: float) -> Tensor:
    """Return Gaussian weights over the values (K,) around each target (…), normalised to one: (…, K)."""
    return (-0.5 * ((values - target[..., None]) / sigma) ** 2).softmax(-1)


def _lp(kind: str | Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return kind if callable(kind) else DISTANCES[kind]


def token_distance(values: Tensor, target: Tensor, squash: float | None) -> Tensor:
    """Return the (squashed) distance of each number token (K,) to each target (…): (…, K)."""
    distance = (values - target[..., None]).abs()
    if squash is None:
        return distance
    gaps = values.sort().values.diff()
    far = values.max() - values.min()
    near = torch.where(gaps > 0, gaps, far).min() if len(gaps) else far
    # two values only: the nearest is the farthest, and costs 1
    stretch = (squash - 1) / torch.where(far > near, far - near, 1.0)
    return torch.where(distance > 0, 1 + (distance - near) * stretch, 0.0)


def _cumulative_gap(difference: Tensor, values: Tensor) -> Tensor:
    """Return ∫ |F(v)| dv, F the cumulative sum of `difference` (…, K) along the sorted values (K,)."""
    values, order = values.sort()
    return (difference[..., order].cumsum(-1)[..., :-1].abs() * values.diff()).sum(-1)
