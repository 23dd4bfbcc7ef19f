"""What an encoding can be told: one frozen dataclass for each that has options, checked when it is made.

`<class>Options` declares the options of the encoding `<class>`. Importing this module does not load torch, so that a
wrong option is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ntl import options
from ntl.options import option


@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """Base of all: no options.

    Raises:
        ValueError: an option has a wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        options.check(self)


@dataclass(frozen=True, kw_only=True)
class _WritingOptions(EncodingOptions):
    """How a predicted number is written; see `values.Scale`."""

    significant: int = option(7, "significant digits of a written number, at most", at_least=1, at_most=15)
    decimals: int | None = option(
        None, "decimals of a written number, at most; null: no rounding to decimals", at_least=0, at_most=30
    )


@dataclass(frozen=True, kw_only=True)
class ScalarOptions(_WritingOptions):
    log: bool = option(False, "predict sign(x)·ln(|x| + 1) instead of x")
    standardise: bool = option(
        True,
        "subtract the mean of the training targets and divide by their standard deviation; false: raw targets, as "
        "published. The squared error differs by a constant factor",
    )


@dataclass(frozen=True, kw_only=True)
class XValOptions(_WritingOptions):
    log: bool = option(
        True,
        "multiply by, and predict, sign(x)·log10(|x| + 1) / (log10(3·10⁹) / 10); false: multiply by x + 1, predict x",
    )
    positions: int = option(1024, "learnt positions of encoder and decoder", at_least=1)


@dataclass(frozen=True, kw_only=True)
class XValMaskOptions(_WritingOptions):
    log: bool = option(
        True, "multiply by, and predict, ln(x + 1) of unsigned numbers; false: multiply by x + 1, predict x"
    )
    positions: int = option(512, "learnt positions of the encoder; 512 as published", at_least=1)


@dataclass(frozen=True, kw_only=True)
class XValMaskSignedOptions(_WritingOptions):
    log: bool = option(True, "multiply by, and predict, sign(x)·ln(|x| + 1); false: multiply by x + 1, predict x")
    positions: int = option(1024, "learnt positions of the encoder", at_least=1)


@dataclass(frozen=True, kw_only=True)
class RegressionTransformerOptions(EncodingOptions):
    lowest: int = option(-12, "place of the last decimal; −12 is the twelfth", at_least=-60, at_most=0)
    highest: int = option(19, "place of the first digit; 19 allows for numbers below 10²⁰", at_least=0, at_most=60)
