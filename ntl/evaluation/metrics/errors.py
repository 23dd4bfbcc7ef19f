"""Errors and fits of numbers.

`predictions` and `labels` are equally long sequences of Decimal, used as they are: `score` clips. Differences are taken
before anything becomes a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext

import numpy as np

from ntl.evaluation.metrics.base import Undefined, metric

CLIP = Decimal(10) ** 10  # of predictions, as in the paper
# A hundred significant digits: subtraction is exact for answers of up to that many, and rounded correctly beyond.
_PRECISE = Context(prec=100)


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
    return float(np.median(np.abs(_differences(predictions, labels))))


@metric("MAPE", better="lower", kind="error", format=".4g")
def mape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return _mean(_relative_errors(predictions, labels))


@metric("Median absolute percentage error", better="lower", kind="error", format=".4g")
def median_ape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Median absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return float(np.median(_relative_errors(predictions, labels)))


@metric("log-MAE", better="lower", kind="error")
def log_mae(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error in signed log space, sign(x)·log10(|x| + 1): the paper's MAE on mathematics."""
    return _mean(np.abs(_signed_log10(predictions) - _signed_log10(labels)))


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

    return float(pearsonr(_centred(predictions, "answers"), _centred(labels, "references")).statistic)


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
    with localcontext(_PRECISE):
        size = np.abs(labels)
        limit = np.where(size > CLIP, 10 * size, CLIP)
        return np.maximum(np.minimum(predictions, limit), -limit)


def _some(numbers: Sequence) -> None:
    if not len(numbers):
        raise Undefined("no answer holds a number")


def _differences(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    """p − y as float64, rounded once after exact subtraction."""
    _some(labels)
    with localcontext(_PRECISE):
        return (as_objects(predictions) - as_objects(labels)).astype(float)


def _relative_errors(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    differences, sizes = _differences(predictions, labels), np.abs(as_objects(labels))
    kept = sizes != 0
    if not kept.any():
        raise Undefined("every reference is 0")
    return np.abs(differences[kept]) / sizes[kept].astype(float)


def _centred(numbers: Sequence[Decimal], what: str) -> np.ndarray:
    """x − x̄ as float64, subtracted exactly: 1e20 + 1 and 1e20 + 2 stay apart."""
    if len(numbers) < 2:
        raise Undefined("fewer than two answers hold a number")
    numbers = as_objects(numbers)
    if (numbers == numbers[0]).all():
        raise Undefined(f"the {what} are constant")
    with localcontext(_PRECISE):
        return (numbers - numbers.sum() / len(numbers)).astype(float)


def _dense_ranks(numbers: Sequence[Decimal]) -> np.ndarray:
    """Ranks without gaps, from exact comparison: floats would tie numbers that differ late."""
    rank = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return np.array([rank[number] for number in numbers])


def _signed_log10(numbers: Sequence[Decimal]) -> np.ndarray:
    from ntl.numbers import signed_log10

    _some(numbers)
    return np.array([signed_log10(number) for number in numbers])


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values))


def _rms(values: np.ndarray) -> float:
    """Root of the mean square, scaled so that squares do not overflow."""
    scale = np.max(np.abs(values))
    return float(scale and scale * np.sqrt(np.mean((values / scale) ** 2)))


def _r2(residuals: np.ndarray, centred: np.ndarray) -> float:
    scale = np.max(np.abs(centred))  # so that squares do not overflow
    if scale == 0:
        raise Undefined("the references differ by less than double precision")
    return float(1 - np.sum((residuals / scale) ** 2) / np.sum((centred / scale) ** 2))


def as_objects(items: Sequence) -> np.ndarray:
    """A one-dimensional array of objects (numpy would otherwise make its own of some)."""
    array = np.empty(len(items), dtype=object)
    array[:] = list(items)
    return array
