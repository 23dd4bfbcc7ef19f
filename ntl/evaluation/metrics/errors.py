"""Errors and fits of numbers.

`predictions` and `labels` are equally long sequences of Decimal, used as they are: `score` clips. Differences,
quotients and logarithms are taken of Decimals, and only results become floats: a number above 1e308 leaves the metrics
of its split defined. One is undefined for size only where its own value lies beyond double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

from ntl.evaluation.metrics.base import Undefined, metric

CLIP = Decimal(10) ** 10  # of predictions, as in the paper
# A hundred significant digits: subtraction is exact for answers of up to that many, and rounded correctly beyond.
PRECISE = Context(prec=100)
_ROUNDED = Context(prec=25)  # more than a float holds


@metric("MAE", better="lower", kind="error", format=".4g")
def mae(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error, in the unit of the labels."""
    return _mean(np.abs(_differences(predictions, labels)))


@metric("RMSE", better="lower", kind="error", format=".4g")
def rmse(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Root of the mean squared error, in the unit of the labels."""
    return _rms(_differences(predictions, labels))


@metric("Median absolute error", better="lower", kind="error", format=".4g")
def median_absolute_error(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Median absolute error, in the unit of the labels: one answer of thirty digits can rule a mean, not this."""
    return _median(np.abs(_differences(predictions, labels)))


@metric("MAPE", better="lower", kind="error", format=".4g")
def mape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return _mean(_relative_errors(predictions, labels))


@metric("Median absolute percentage error", better="lower", kind="error", format=".4g")
def median_ape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Median absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return _median(_relative_errors(predictions, labels))


@metric("log-MAE", better="lower", kind="error")
def log_mae(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error in signed log space, sign(x)·log10(|x| + 1): the paper's MAE on mathematics."""
    return float(np.mean(np.abs(_signed_log10(predictions) - _signed_log10(labels))))


@metric("R²", better="higher", kind="fit")
def r2(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Coefficient of determination; 0 for the labels' own mean, negative for worse. Undefined for equal labels."""
    return _r2(_differences(predictions, labels), _centred(labels, "references"))


@metric("log-R²", better="higher", kind="fit")
def log_r2(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Coefficient of determination in signed log space, sign(x)·log10(|x| + 1). Undefined for equal labels."""
    _centred(labels, "references")  # equal labels are noticed before rounding makes them differ or agree
    logs = _signed_log10(labels)
    return _r2(_signed_log10(predictions) - logs, logs - np.mean(logs))


@metric("Pearson", better="higher", kind="fit")
def pearson(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Pearson correlation. Undefined with fewer than two pairs or where either side is constant."""
    from scipy.stats import pearsonr

    return float(pearsonr(_standard(predictions, "answers"), _standard(labels, "references")).statistic)


@metric("Spearman", better="higher", kind="fit")
def spearman(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Spearman's rank correlation, ties at their mean rank. Undefined as `pearson` is."""
    from scipy.stats import spearmanr

    for numbers, what in ((predictions, "answers"), (labels, "references")):
        _centred(numbers, what)  # raises where a correlation is undefined
    return float(spearmanr(_dense_ranks(predictions), _dense_ranks(labels)).statistic)


def clip(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    """Limit predictions to ±1e10 or, where |label| is larger than that, to ±10·|label|: an array of Decimal."""
    predictions, labels = as_objects(predictions), as_objects(labels)
    with localcontext(PRECISE):
        size = np.abs(labels)
        limit = np.where(size > CLIP, 10 * size, CLIP)
        return np.maximum(np.minimum(predictions, limit), -limit)


def _some(numbers: Sequence) -> None:
    if not len(numbers):
        raise Undefined("no answer holds a number")


def _differences(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    """p − y, exact: an array of Decimal."""
    _some(labels)
    with localcontext(PRECISE):
        return as_objects(predictions) - as_objects(labels)


def _relative_errors(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    differences, sizes = _differences(predictions, labels), np.abs(as_objects(labels))
    kept = sizes != 0
    if not kept.any():
        raise Undefined("every reference is 0")
    with localcontext(PRECISE):
        return np.abs(differences[kept]) / sizes[kept]


def _centred(numbers: Sequence[Decimal], what: str) -> np.ndarray:
    """x − x̄, subtracted exactly: 1e20 + 1 and 1e20 + 2 stay apart. An array of Decimal."""
    if len(numbers) < 2:
        raise Undefined("fewer than two answers hold a number")
    numbers = as_objects(numbers)
    if (numbers == numbers[0]).all():
        raise Undefined(f"the {what} are constant")
    with localcontext(PRECISE):
        return numbers - numbers.sum() / len(numbers)


def _dense_ranks(numbers: Sequence[Decimal]) -> np.ndarray:
    """Ranks without gaps, from exact comparison: floats would tie numbers that differ late."""
    rank = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return np.array([rank[number] for number in numbers])


def _signed_log10(numbers: Sequence[Decimal]) -> np.ndarray:
    """sign(x)·log10(|x| + 1) as float64."""
    _some(numbers)
    return np.array([math.copysign(_log10(_ROUNDED.add(abs(x), 1)), x) for x in numbers])


def _log10(x: Decimal) -> float:
    """The logarithm of a positive Decimal of any size, from its leading digits and its exponent."""
    exponent = x.adjusted()
    return math.log10(x.scaleb(-exponent, _ROUNDED)) + exponent


def _mean(values: Sequence[Decimal]) -> float:
    """The mean of Decimals, summed exactly."""
    with localcontext(PRECISE):
        return float(sum(values) / len(values))


def _median(values: Sequence[Decimal]) -> float:
    """The median of Decimals: the mean of the middle two for an even count."""
    ordered = sorted(values)
    return _mean(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1])


def _scaled(values: np.ndarray, scale: Any) -> np.ndarray:
    """values / scale as float64: squares of what is at most the scale do not overflow."""
    with localcontext(PRECISE):
        return (values / scale).astype(float)


def _scale(centred: np.ndarray, what: str) -> Any:
    """The largest distance from the mean."""
    scale = max(map(abs, centred))
    if not scale:
        raise Undefined(f"the {what} differ by less than can be computed")
    return scale


def _standard(numbers: Sequence[Decimal], what: str) -> np.ndarray:
    """x − x̄ over its largest value, as float64."""
    centred = _centred(numbers, what)
    return _scaled(centred, _scale(centred, what))


def _rms(values: np.ndarray) -> float:
    """Root of the mean square."""
    scale = max(map(abs, values))
    return float(scale and scale * Decimal(float(np.sqrt(np.mean(_scaled(values, scale) ** 2)))))


def _r2(residuals: np.ndarray, centred: np.ndarray) -> float:
    scale = _scale(centred, "references")
    return float(1 - np.sum(_scaled(residuals, scale) ** 2) / np.sum(_scaled(centred, scale) ** 2))


def as_objects(items: Sequence) -> np.ndarray:
    """A one-dimensional array of objects (numpy would otherwise make its own of some)."""
    array = np.empty(len(items), dtype=object)
    array[:] = list(items)
    return array
