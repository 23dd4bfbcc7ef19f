"""Number token losses. They need torch alone, so that `from ntl.losses import …` works in anyone's trainer."""

from ntl.losses.dropin import NTLoss, NTLossDotProduct, NumberLevelLoss
from ntl.losses.functional import Counts
from ntl.losses.modules import GaussianCrossEntropy, NumberTokenLoss
from ntl.losses.objectives import CrossEntropy, CrossEntropyWithNTL, LossParts, Objective

__all__ = [
    "Counts",
    "CrossEntropy",
    "CrossEntropyWithNTL",
    "GaussianCrossEntropy",
    "LossParts",
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
    "NumberTokenLoss",
    "Objective",
]
