"""The options of a loss as one frozen object, checked when it is made, and the denominators of its means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ntl.losses import _checks as check

KINDS = ("was", "mse", "mae", "huber")


class Counts(NamedTuple):
    """What the means of a loss are taken over: the whole batch, over all accumulation steps and processes."""

    labels: Tensor | float  # labels that are not ignored
    numbers: Tensor | float  # labels that are number tokens


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What a total (G)CE + λ·NTL is made of; `functional` defines every option.

    Attributes:
        kind: of the number token loss: one of KINDS, or an elementwise d(prediction, target).
        weight: λ; None leaves the number token loss out of a total. A number token loss alone does not heed it.
        sigma: standard deviation of a Gaussian target, in units of the tokens' values; None for a one-hot target.
        reweigh: whether probability outside the number tokens costs more than the largest distance.
        squash: the cost of the farthest number token, where the nearest wrong one costs 1; None leaves distances alone.
        place_value: by which factor a digit weighs more than the next one of its number.
        label_smoothing: the share of the target that is spread evenly over the vocabulary.

    Raises:
        ValueError: an option is out of range, or two do not go together.
    """

    kind: str | Callable[[Tensor, Tensor], Tensor] = "was"
    weight: float | None = None
    sigma: float | None = None
    reweigh: bool = False
    squash: float | None = None
    place_value: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.kind):
            check.check_choice("kind", self.kind, KINDS)
        if self.weight is not None:
            check.check_weight(self.weight)
        check.check_flag("reweigh", self.reweigh)
        check.check_real("place_value", self.place_value, "1 weighs all digits alike, as the paper does", least=1.0)
        check.check_real("label_smoothing", self.label_smoothing, "0 leaves the target as it is", below=1.0)
        if self.squash is not None:
            advice = "9 leaves the digits 0 to 9 as they are, 1 makes all wrong tokens alike"
            check.check_real("squash", self.squash, advice, least=1.0)
        if self.sigma is not None:
            check.check_sigma(self.sigma)
        for name in ("squash", "sigma"):
            if (value := getattr(self, name)) is not None and self.kind != "was":
                raise ValueError(
                    f"got {name}={value!r} with kind={self.kind!r}, expected kind='was': the other kinds compare an "
                    f"expected value with the label and have no distance between tokens; leave {name} out"
                )
        if self.squash is not None and self.sigma is not None:
            raise ValueError(
                f"got squash={self.squash!r} and sigma={self.sigma!r}, expected one of them: against a smoothed target "
                "the distance is taken along the values themselves"
            )
