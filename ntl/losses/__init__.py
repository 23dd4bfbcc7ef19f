"""Number token losses. They need torch alone, so that `from ntl.losses import …` works in anyone's trainer.

torch is loaded with the first class that is asked for: `ntl.losses.options` can be read without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ntl.losses.dropin import NTLoss, NTLossDotProduct, NumberLevelLoss
    from ntl.losses.encoded import RegressionHead, RegressionTransformer, RegressionTransformerWithNTL, XVal, XValMask
    from ntl.losses.modules import GaussianCrossEntropy, NumberTokenLoss
    from ntl.losses.objectives import CrossEntropy, CrossEntropyWithNTL, LossParts, Objective
    from ntl.losses.options import Counts, LossOptions
    from ntl.losses.successors import CrossEntropyWithDEL, CrossEntropyWithDist2

__all__ = [
    "Counts",
    "CrossEntropy",
    "CrossEntropyWithDEL",
    "CrossEntropyWithDist2",
    "CrossEntropyWithNTL",
    "GaussianCrossEntropy",
    "LossOptions",
    "LossParts",
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
    "NumberTokenLoss",
    "Objective",
    "RegressionHead",
    "RegressionTransformer",
    "RegressionTransformerWithNTL",
    "XVal",
    "XValMask",
]
_MODULES = ("options", "functional", "objectives", "modules", "encoded", "successors", "dropin")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        for module in _MODULES:
            if (found := getattr(import_module(f"{__name__}.{module}"), name, None)) is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
