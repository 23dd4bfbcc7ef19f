"""Numbers that a model regresses: scaled on the way in, written as digits on the way out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np

from ntl.number_grammar import is_number, parse_number
from ntl.rows import Row
from ntl.text import plain_number

LARGEST = 1e30  # what a model says beyond it is cut: no data set has such numbers, and their digits would be noise
_REPRESENTABLE = 3e38  # what a text says beyond it is cut: single precision calls it infinite, and the loss NaN
_SINGLE = 2.0**-22  # two spacings of single precision at 1: what rounding a target and a sum may come to
_EXACT = Context(prec=100)


def check_numbers(rows: Mapping[str, Sequence[Row]]) -> None:
    """Raise a ValueError that names split and row of the first answer that is not one number and nothing else."""
    for split, members in rows.items():
        for index, row in enumerate(members):
            if not is_number(row["answer"]):
                raise ValueError(
                    f"row {index + 1} of the split '{split}' has the answer {row['answer'][:80]!r}, expected one "
                    "number and nothing else, since this method says no text: correct or remove it, or take another "
                    f"loss (the question is {row['question'][:80]!r})"
                )


@dataclass(frozen=True)
class Scale:
    """How a number becomes what a model is to predict, and back.

    A number x is compressed, c(x) = sign(x)·ln(|x| + 1) / unit, or c(x) = x where there is no unit; the model predicts
    z = (c(x) − mean) / std. In single precision z is good for about seven significant digits.

    Attributes:
        unit: of the logarithm; None for no logarithm.
        mean, std: of the compressed numbers in the training answers.
        decimals: a number is written with at most so many; None for no limit.
        significant: a number is written with at most so many significant digits.
    """

    unit: float | None = None
    mean: float = 0.0
    std: float = 1.0
    decimals: int | None = None
    significant: int = 7

    def __post_init__(self) -> None:
        if not (isinstance(self.significant, int) and 1 <= self.significant <= 15):
            raise ValueError(
                f"got significant={self.significant}, expected an integer from 1 to 15: 7 is single precision"
            )
        if self.decimals is not None and not (isinstance(self.decimals, int) and 0 <= self.decimals <= 30):
            raise ValueError(
                f"got decimals={self.decimals}, expected an integer from 0 to 30, or null for no rounding to decimals"
            )

    def fitted(self, numbers: Iterable[Decimal], *, centre: bool = True) -> Scale:
        """Return this scale with the mean and standard deviation of the training answers.

        Args:
            centre: False leaves the mean at 0 and divides by the root mean square, so that the number 0 is z = 0.
        """
        compressed = [self.compress(float(number)) for number in numbers]
        if not compressed:
            return self
        mean = math.fsum(compressed) / len(compressed) if centre else 0.0
        variance = math.fsum((c - mean) ** 2 for c in compressed) / len(compressed)
        return replace(self, mean=mean, std=math.sqrt(variance) or 1.0)

    def compress(self, number: float) -> float:
        """Return c(number), the number cut to what single precision can hold."""
        number = max(-_REPRESENTABLE, min(_REPRESENTABLE, number))
        return number if self.unit is None else math.copysign(math.log1p(abs(number)), number) / self.unit

    def standardise(self, number: float) -> float:
        """Return the z of a number."""
        return (self.compress(number) - self.mean) / self.std

    def target(self, text: str) -> float:
        """Return the z of the number that a text is; NaN for a text without one."""
        number = parse_number(text)
        return float("nan") if number is None else self.standardise(float(number))

    def restore(self, z: float) -> float:
        """Return the number of a z, cut at ±10³⁰; NaN of NaN."""
        if math.isnan(z):
            return z
        c = z * self.std + self.mean
        if self.unit is not None:
            limit = math.log1p(LARGEST)
            c = math.copysign(math.expm1(min(abs(c * self.unit), limit)), c)
        return max(-LARGEST, min(LARGEST, c))

    def text(self, z: float) -> str:
        """Return the number of a z in digits (see `write`); 0 where single precision cannot tell z from that of 0."""
        zero = self.standardise(0.0)
        return "0" if abs(z - zero) <= _SINGLE * max(1.0, abs(zero)) else self.write(self.restore(z))

    def write(self, number: float) -> str:
        """Return a number in digits: rounded once (half to even) to its last allowed digit, which is the `significant`
        first or the `decimals` last one, whichever comes earlier; without exponent, trailing zeros, or a sign of zero.
        Nothing at all for NaN."""
        if math.isnan(number):
            return ""
        exact = Decimal(number)
        last = exact.adjusted() - self.significant + 1
        if self.decimals is not None:
            last = max(last, -self.decimals)
        rounded = exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_HALF_EVEN, context=_EXACT)
        return plain_number(rounded)

    def perfect(self, targets: Iterable[float]) -> list[str]:
        """Return what is written for predictions that equal `targets` in single precision; NaN is no target."""
        exact = (float(np.float32(z)) for z in targets if not math.isnan(z))
        return [self.write(self.restore(z)) for z in exact]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, JSON-able."""
        return asdict(self)
