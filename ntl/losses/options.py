"""What a loss can be told: one frozen dataclass for each, checked when it is made; and the denominators of its means.

`<class>Options` declares the options of the objective `<class>`. Importing this module does not load torch, so that a
wrong option is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ntl import options
from ntl.options import option

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("was", "mse", "mae", "huber")


class Counts(NamedTuple):
    """What the means of a loss are taken over: the whole batch, over all accumulation steps and processes."""

    labels: Tensor | float  # labels that are not ignored
    numbers: Tensor | float  # labels that are number tokens


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """Base of all: no options.

    Raises:
        ValueError: an option has a wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        options.check(self)


@dataclass(frozen=True, kw_only=True)
class _SmoothedOptions(ObjectiveOptions):
    label_smoothing: float = option(
        0.0, "share of the target that is spread evenly over the vocabulary", at_least=0, below=1
    )

    def of_total(self) -> LossOptions:
        """Return the options of the total without what a subclass adds to it."""
        return LossOptions(label_smoothing=self.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOptions(_SmoothedOptions):
    sigma: float | None = option(
        None, "standard deviation of a Gaussian target, in units of the tokens' values; null: a one-hot target", above=0
    )

    def of_total(self) -> LossOptions:
        return LossOptions(label_smoothing=self.label_smoothing, sigma=self.sigma)


@dataclass(frozen=True, kw_only=True)
class LossOptions(CrossEntropyOptions):
    """What a total (G)CE + λ·NTL is made of; `functional` defines every option.

    A number token loss alone does not use `weight`.

    Raises:
        ValueError: an option is out of range, or two do not go together.
    """

    kind: str | Callable = option("was", "the number token loss; in Python also an elementwise d(prediction, target)",
                                  choices=KINDS)  # fmt: skip
    weight: float | None = option(None, "λ; null leaves the number token loss out of a total", at_least=0)
    reweigh: bool = option(False, "probability outside the number tokens costs more than the largest distance")
    squash: float | None = option(
        None,
        "cost of the farthest number token, where the nearest wrong one costs 1; null leaves distances alone",
        at_least=1,
    )
    place_value: float = option(1.0, "a digit weighs this factor more than the next one of its number", at_least=1)

    def __post_init__(self) -> None:
        for name, declared in options.options_of(type(self)).items():
            if name != "kind" or not callable(self.kind):
                options.check_value(declared, getattr(self, name))
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

    def of_total(self) -> LossOptions:
        return self


@dataclass(frozen=True, kw_only=True)
class CrossEntropyWithNTLOptions(LossOptions):
    weight: float = option(0.3, "λ; 0.3 is the paper's, 0 turns the number token loss off", at_least=0)


@dataclass(frozen=True, kw_only=True)
class RegressionTransformerOptions(CrossEntropyOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class RegressionTransformerWithNTLOptions(CrossEntropyWithNTLOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class XValOptions(ObjectiveOptions):
    weight: float = option(0.5, "share of the squared error; one half is (CE + MSE) / 2", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class XValMaskOptions(ObjectiveOptions):
    weight: float = option(1.0, "of the squared error; 1 is the published CE + MSE", at_least=0)


@dataclass(frozen=True, kw_only=True)
class RegressionHeadOptions(ObjectiveOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class CrossEntropyWithDist2Options(_SmoothedOptions):
    weight: float = option(0.1, "of DIST2Loss; 0 turns it off", at_least=0)
    temperature: float = option(1.0, "τ of its target; the paper uses 1", above=0)


@dataclass(frozen=True, kw_only=True)
class CrossEntropyWithDELOptions(_SmoothedOptions):
    weight: float = option(0.01, "of DEL; 0 turns it off", at_least=0)
