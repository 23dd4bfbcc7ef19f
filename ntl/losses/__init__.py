"""Number token losses. They need torch alone, so that `from ntl.losses import …` works in anyone's trainer."""

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
