"""Which digit of a wrong number is the first that is wrong. With `accuracy` and `no_number` these shares sum to one."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import dropwhile

import numpy as np

from ntl.evaluation.metrics.base import metric

DIGITS = 6  # digit positions told apart by first_wrong_*
PLACES = ("sign", *(str(place) for place in range(1, DIGITS + 1)), "later")


def first_wrong_digit(prediction: Decimal, label: Decimal) -> int | None:
    """Where two numbers first differ, read from the left with their places aligned.

    Both are written out without an exponent, units under units, with zeros where one has no digit. Position 1 is the
    first place at which either has a digit other than zero: an answer with too many or too few digits before the point
    is wrong at 1. Position 0 is the sign, where one number is negative and the other positive.

    Returns:
        None where the numbers are equal.
    """
    if prediction == label:
        return None
    if prediction and label and prediction.is_signed() != label.is_signed():
        return 0
    whole, fraction = zip(*(_digits(number) for number in (prediction, label)), strict=True)
    left, right = max(map(len, whole)), max(map(len, fraction))
    aligned = [w.zfill(left) + f.ljust(right, "0") for w, f in zip(whole, fraction, strict=True)]
    from_first_digit = dropwhile(lambda pair: pair == ("0", "0"), zip(*aligned, strict=True))
    return next(position for position, (ours, wanted) in enumerate(from_first_digit, start=1) if ours != wanted)


def place(answer: Decimal, label: Decimal) -> str:
    """The one of `PLACES` where an answer first differs from its label."""
    position = first_wrong_digit(answer, label)
    return PLACES[position] if position <= DIGITS else "later"


def _digits(number: Decimal) -> tuple[str, str]:
    """The digits before and after the decimal point, without a sign."""
    whole, _, fraction = f"{number.copy_abs():f}".partition(".")
    return whole, fraction


def _share(of: str) -> Callable[..., float]:
    """Share of answers whose first wrong digit stands at the place `of`."""
    return lambda wrong_at: np.mean(wrong_at == of)


for _name in PLACES:
    metric(f"First wrong digit: {_name}", better=None, kind="share", name=f"first_wrong_{_name}")(_share(_name))
