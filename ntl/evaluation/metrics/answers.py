"""Right and wrong answers, and answers that hold no number or were cut."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np

from ntl.evaluation.metrics.base import metric
from ntl.evaluation.metrics.errors import CLIP, PRECISE

_ATOL, _RTOL = Decimal("1e-8"), Decimal("1e-5")


@metric("Questions", better=None, kind="count", format=".0f")
def count(right: np.ndarray) -> float:
    """Number of questions."""
    return len(right)


@metric("Accuracy", better="higher", kind="score")
def accuracy(right: np.ndarray) -> float:
    """Share of answers that are right.

    Numbers: exactly equal (1.50 = 1.5, -0 = 0). Texts: equal but for white space at either end.
    """
    return np.mean(right)


@metric("Accuracy (isclose)", better="higher", kind="score")
def accuracy_isclose(answers: np.ndarray, targets: np.ndarray) -> float:
    """Share of answers with |p − y| ≤ 1e-8 + 1e-5·|y|: the paper's tolerance, for methods that write floats.

    Nothing is clipped, so that a right answer beyond 1e10 is right.
    """
    return np.mean([_is_close(p, y) for p, y in zip(answers, targets, strict=True)])


@metric("Accuracy (paper's parser)", better="higher", kind="score")
def accuracy_paper_parser(paper_answers: np.ndarray, paper_targets: np.ndarray) -> float:
    """The published accuracy: numbers as the paper's evaluation reads them, p clipped to ±1e10, and its tolerance.

    A right answer beyond 1e10 is wrong here, unless it lies within the tolerance of the clipped one.
    """
    clipped = (p if p is None else max(min(p, CLIP), -CLIP) for p in paper_answers)
    return np.mean([_is_close(p, y) for p, y in zip(clipped, paper_targets, strict=True)])


def _is_close(p: Decimal | None, y: Decimal | None) -> bool:
    """`numpy.isclose` with its default tolerances, of Decimals, so that no size overflows; False without a number."""
    if p is None or y is None:
        return False
    with localcontext(PRECISE):
        return abs(p - y) <= _ATOL + _RTOL * abs(y)


@metric("Without a number", better="lower", kind="share")
def no_number(answers: np.ndarray) -> float:
    """Share of answers without a number; they are wrong in every accuracy."""
    return np.mean([answer is None for answer in answers])


@metric("Cut at the limit", better="lower", kind="share")
def cut(truncated: np.ndarray) -> float:
    """Share of answers that ended at the generation limit."""
    return np.mean(truncated)
