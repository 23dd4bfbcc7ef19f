"""Right and wrong answers, and answers that hold no number or were cut."""

from __future__ import annotations

import numpy as np

from ntl.evaluation.metrics.base import metric
from ntl.evaluation.metrics.errors import CLIP


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
    """The paper's accuracy: share with |p − y| ≤ 1e-8 + 1e-5·|y|, p clipped to ±1e10 whatever y is."""
    answered = np.array([answer is not None for answer in answers])
    numbers = np.where(answered, answers, targets)  # the targets are masked below
    as_in_paper = np.maximum(np.minimum(numbers, CLIP), -CLIP).astype(float)
    return np.mean(answered & np.isclose(as_in_paper, targets.astype(float), rtol=1e-5, atol=1e-8))


@metric("Without a number", better="lower", kind="share")
def no_number(answers: np.ndarray) -> float:
    """Share of answers without a number; they are wrong in both accuracies."""
    return np.mean([answer is None for answer in answers])


@metric("Cut at the limit", better="lower", kind="share")
def cut(truncated: np.ndarray) -> float:
    """Share of answers that ended at the generation limit."""
    return np.mean(truncated)
