"""How well generated text answers: every metric compares text with text over a whole split.

Nothing is averaged over batches. A question is scored from two strings, what the model wrote and the reference, so that
every method passes through the same path; only `token_accuracy` and `perplexity` need sums that evaluation collects.

The number of an answer is the last decimal in it (`ntl.numbers.parse_number`) and stays a `Decimal`: answers of thirty
digits are compared digit by digit, and differences are taken before anything becomes a float.

============================  =======================================================================================
name                          definition, over all questions of a group unless stated
============================  =======================================================================================
`count`                       questions
`accuracy`                    share right. Numbers: exactly equal (1.50 = 1.5, -0 = 0). Texts: equal but for white
                              space at either end
`accuracy_isclose`            the paper's: share with |p − y| ≤ 1e-8 + 1e-5·|y|, p clipped to ±1e10 whatever y is
`no_number`                   share of answers without a number. They are wrong in both accuracies
`first_wrong_sign`, `…_1` …   share whose first wrong digit stands there, see `first_wrong_digit`; `…_later` is any
                              place after the sixth. With `accuracy` and `no_number` these shares sum to one
`mae`, `rmse`                 mean of |p − y|, root of the mean of (p − y)²
`median_absolute_error`       median of |p − y|: one answer of thirty digits can rule a mean, not this
`mape`, `median_ape`          mean and median of |p − y|/|y| as a fraction (0.5 is 50 %); questions whose reference
                              is 0 have no relative error and are left out of both
`log_mae`, `log_r2`           MAE and R² of sign(x)·log10(|x| + 1): the paper's MAE and R² on mathematics
`r2`                          1 − Σ(p − y)²/Σ(y − ȳ)², pooled over the group
`pearson`, `spearman`         correlations of p and y
`…_filled`                    the ten above (`mae` … `spearman`) with `fill` for every answer without a number
`bleu`, `rouge1`              texts, and numbers whose references hold words (whole solutions): sacrebleu's corpus
                              BLEU (13a tokens) divided by 100, and the mean over questions of the ROUGE-1 F1 of
                              rouge-score (no stemming)
`cut`                         share of answers that ended at the generation limit
`token_accuracy`              share of reference tokens predicted right under teacher forcing, padding excluded
`perplexity`                  exp of the mean negative log-likelihood of a reference token, padding excluded
============================  =======================================================================================

Two conventions for answers without a number stand side by side. Plain names leave such answers out, as the paper does:
a model can gain by staying silent. The names ending in `_filled` count them as the trivial prediction, the median of
the training answers: silence then earns what a constant earns.

From `mae` to `spearman_filled` p is clipped to ±1e10, as in the paper, and y is not. Where y itself lies beyond 1e10
the limit is ten times |y| instead: the paper's clip would call a right answer wrong there.

A metric without a value, such as the correlation with a constant, is None with a note that says why, never 0 or NaN.
One that does not apply (BLEU of numbers, `cut` where nobody counted) is absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from itertools import dropwhile
from typing import Literal, NamedTuple

import numpy as np

CLIP = Decimal(10) ** 10  # of predictions, as in the paper
DIGITS = 6  # digit positions told apart by first_wrong_*
# A hundred significant digits: subtraction is exact for answers of up to that many, and rounded correctly beyond.
_PRECISE = Context(prec=100)


@dataclass(frozen=True)
class Metric:
    """How a metric is shown and judged.

    `kind` says what counts as a difference: a "score" lies in 0–1 and is compared absolutely, an "error" is compared
    relatively, a "fit" is R² or a correlation, a "share" or "count" describes and is not judged. `margin` is the half
    width, in the metric's own unit, within which a claim of no effect holds; None where no such claim is made.
    """

    title: str
    better: Literal["higher", "lower"] | None
    kind: Literal["score", "error", "fit", "share", "count"]
    format: str = ".3f"
    margin: float | None = None


_ERRORS_AND_FITS = {
    "mae": Metric("MAE", "lower", "error", ".4g"),
    "rmse": Metric("RMSE", "lower", "error", ".4g", margin=0.05),
    "median_absolute_error": Metric("Median absolute error", "lower", "error", ".4g"),
    "mape": Metric("MAPE", "lower", "error", ".4g", margin=0.05),
    "median_ape": Metric("Median absolute percentage error", "lower", "error", ".4g"),
    "log_mae": Metric("log-MAE", "lower", "error"),
    "r2": Metric("R²", "higher", "fit"),
    "log_r2": Metric("log-R²", "higher", "fit"),
    "pearson": Metric("Pearson", "higher", "fit"),
    "spearman": Metric("Spearman", "higher", "fit"),
}
_PLACES = ("sign", *(str(place) for place in range(1, DIGITS + 1)), "later")

METRICS: dict[str, Metric] = {
    "count": Metric("Questions", None, "count", ".0f"),
    "accuracy": Metric("Accuracy", "higher", "score", margin=0.02),
    "accuracy_isclose": Metric("Accuracy (isclose)", "higher", "score", margin=0.02),
    "no_number": Metric("Without a number", "lower", "share"),
    **_ERRORS_AND_FITS,
    **{
        f"{name}_filled": replace(metric, title=f"{metric.title} (filled)") for name, metric in _ERRORS_AND_FITS.items()
    },
    **{f"first_wrong_{place}": Metric(f"First wrong digit: {place}", None, "share") for place in _PLACES},
    "bleu": Metric("BLEU", "higher", "score", margin=0.01),
    "rouge1": Metric("ROUGE-1", "higher", "score", margin=0.01),
    "cut": Metric("Cut at the limit", "lower", "share"),
    "token_accuracy": Metric("Token accuracy", "higher", "score"),
    "perplexity": Metric("Perplexity", "lower", "error", ".4g"),
}


class Undefined(ValueError):
    """The metric has no value for these answers; the message says why."""


class Scores(NamedTuple):
    """`metrics[group][name]` is a value or None, `notes[group][name]` says why it is None."""

    metrics: dict[str, dict[str, float | None]]
    notes: dict[str, dict[str, str]]


@dataclass(frozen=True)
class TokenStats:
    """Sums over the reference tokens of a split, padding excluded; batches are added up with `+`."""

    correct: int = 0  # tokens whose most likely prediction is right
    tokens: int = 0
    nll_sum: float = 0.0  # natural logarithm

    def __add__(self, other: TokenStats) -> TokenStats:
        return TokenStats(self.correct + other.correct, self.tokens + other.tokens, self.nll_sum + other.nll_sum)


def score(
    generated: Sequence[str],
    references: Sequence[str],
    *,
    kind: Literal["number", "text"] = "number",
    fill: Decimal | str | None = None,
    groups: Sequence[str | None] | None = None,
    token_stats: TokenStats | Mapping[str, TokenStats] | None = None,
    truncated: Sequence[bool] | None = None,
) -> Scores:
    """Score a whole split, in the group "all" and in every group that `groups` names.

    Args:
        generated: what the model wrote, one text per question.
        references: the right answers in the same order. With `kind="number"` each must hold a number.
        kind: "number" if the last number of an answer is what counts, "text" if the text itself does.
        fill: the number that counts for an answer without one in the metrics ending in `_filled`.
        groups: the group of each question, such as its module; None for a question in "all" only.
        token_stats: sums for "all", or for each group by name.
        truncated: whether each answer was cut at the generation limit.

    Raises:
        ValueError: unequal lengths, no question, a reference without a number, an unknown kind, a group named "all".
    """
    _check(generated, references, kind, groups, truncated)
    if isinstance(token_stats, TokenStats):
        token_stats = {"all": token_stats}
    if kind == "number":
        rows: _NumberRows | _TextRows = _NumberRows(generated, references, fill)
    else:
        rows = _TextRows(generated, references)
    members = {"all": np.arange(len(generated))}
    if groups is not None:
        members |= {str(name): np.flatnonzero(np.asarray(groups) == name) for name in sorted(set(groups) - {None})}

    scores = Scores({}, {})
    for group, index in members.items():
        cut = None if truncated is None else np.asarray(truncated, dtype=bool)[index]
        definitions = rows.definitions(index) | _other_definitions(len(index), cut, (token_stats or {}).get(group))
        scores.metrics[group], scores.notes[group] = _evaluate(definitions)
    return scores


# Errors and fits. `predictions` and `labels` are equally long sequences of Decimal, used as they are: `score` clips.
# Each raises Undefined where it has no value.


def mae(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error, in the unit of the labels."""
    return _mean(np.abs(_differences(predictions, labels)))


def rmse(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Root of the mean squared error, in the unit of the labels."""
    return _rms(_differences(predictions, labels))


def median_absolute_error(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Median absolute error, in the unit of the labels."""
    return float(np.median(np.abs(_differences(predictions, labels))))


def mape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return _mean(_relative_errors(predictions, labels))


def median_ape(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Median absolute error relative to |label|, as a fraction; labels of 0 are left out."""
    return float(np.median(_relative_errors(predictions, labels)))


def r2(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Coefficient of determination; 0 for the labels' own mean, negative for worse. Undefined for equal labels."""
    return _r2(_differences(predictions, labels), _centred(labels, "references"))


def log_mae(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Mean absolute error in signed log space, sign(x)·log10(|x| + 1)."""
    return _mean(np.abs(_signed_log10(predictions) - _signed_log10(labels)))


def log_r2(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Coefficient of determination in signed log space, sign(x)·log10(|x| + 1). Undefined for equal labels."""
    _centred(labels, "references")  # equal labels are noticed before rounding makes them differ or agree
    logs = _signed_log10(labels)
    return _r2(_signed_log10(predictions) - logs, logs - np.mean(logs))


def pearson(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Pearson correlation. Undefined with fewer than two pairs or where either side is constant."""
    from scipy.stats import pearsonr

    return float(pearsonr(_centred(predictions, "answers"), _centred(labels, "references")).statistic)


def spearman(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> float:
    """Spearman's rank correlation, ties at their mean rank. Undefined as `pearson` is."""
    from scipy.stats import spearmanr

    for numbers, what in ((predictions, "answers"), (labels, "references")):
        _centred(numbers, what)  # raises where a correlation is undefined
    return float(spearmanr(_dense_ranks(predictions), _dense_ranks(labels)).statistic)


def clip(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    """Limit predictions to ±1e10 or, where |label| is larger than that, to ±10·|label|: an array of Decimal."""
    predictions, labels = _array(predictions), _array(labels)
    with localcontext(_PRECISE):
        size = np.abs(labels)
        limit = np.where(size > CLIP, 10 * size, CLIP)
        return np.maximum(np.minimum(predictions, limit), -limit)


# Digits


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


# Texts


def bleu(generated: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of sacrebleu (13a tokens, exponential smoothing), divided by 100.

    Undefined where no reference has four tokens: even a perfect answer would then have 0.
    """
    import sacrebleu

    value = sacrebleu.corpus_bleu(list(generated), [list(references)]).score / 100
    if value == 0 and sacrebleu.corpus_bleu(list(references), [list(references)]).score == 0:
        raise Undefined("no reference has the four words that BLEU counts in")
    return min(value, 1.0)  # sacrebleu may exceed 100 by rounding


def rouge1(generated: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-1 F1 of rouge-score, without stemming. Equal texts count 1 even where they hold no word."""
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    scorer = RougeScorer(["rouge1"], tokenizer=DefaultTokenizer(use_stemmer=False))  # without one it logs a line a call
    pairs = zip(generated, references, strict=True)
    return _mean([1.0 if ours == right else scorer.score(right, ours)["rouge1"].fmeasure for ours, right in pairs])


# Tokens


def token_accuracy(correct: int, total: int) -> float:
    """Share of reference tokens predicted right; both counts exclude padding."""
    if total == 0:
        raise Undefined("there is no token to predict")
    return correct / total


def perplexity(nll_sum: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood (natural logarithm) of a reference token; padding excluded from both."""
    if tokens == 0:
        raise Undefined("there is no token to predict")
    return float(np.exp(nll_sum / tokens))


# How `score` puts these together

Definitions = dict[str, Callable[[], float]]


class _NumberRows:
    """The numbers of a split, parsed once: shape (questions,) throughout."""

    def __init__(self, generated: Sequence[str], references: Sequence[str], fill: Decimal | str | None) -> None:
        from ntl.numbers import parse_number  # loads torch, which readers of METRICS need not wait for

        labels = [parse_number(text) for text in references]
        if None in labels:
            row = labels.index(None)
            raise ValueError(
                f"got a reference without a number (question {row}: {references[row]!r}), expected one in each: "
                'score such answers with kind="text"'
            )
        answers = [parse_number(text) for text in generated]
        pairs = list(zip(answers, labels, strict=True))
        self.labels = _array(labels)
        self.answered = np.array([answer is not None for answer in answers])
        self.right = np.array([answer == label for answer, label in pairs])
        self.wrong_at = np.array(["" if a is None or a == label else _place(a, label) for a, label in pairs])
        # Rows without an answer hold their label here, and are masked or never read.
        plain = _array([label if answer is None else answer for answer, label in pairs])
        as_in_paper = np.maximum(np.minimum(plain, CLIP), -CLIP).astype(float)
        self.close = self.answered & np.isclose(as_in_paper, self.labels.astype(float), rtol=1e-5, atol=1e-8)
        self.plain = clip(plain, self.labels)
        self.filled = None
        if fill is not None:
            self.filled = clip([Decimal(fill) if answer is None else answer for answer in answers], self.labels)
        words = any(re.search("[A-Za-z]", text) for text in references)
        self.texts = _TextRows(generated, references) if words else None

    def definitions(self, index: np.ndarray) -> Definitions:
        kept = index[self.answered[index]]

        def plain(name: str) -> float:
            return _FUNCTIONS[name](self.plain[kept], self.labels[kept])

        def filled(name: str) -> float:
            if len(kept) == len(index):
                return plain(name)
            if self.filled is None:
                raise Undefined("some answers hold no number, and no number was given to fill in")
            return _FUNCTIONS[name](self.filled[index], self.labels[index])

        return {
            **(self.texts.definitions(index) if self.texts else {}),
            "accuracy": lambda: np.mean(self.right[index]),
            "accuracy_isclose": lambda: np.mean(self.close[index]),
            "no_number": lambda: np.mean(~self.answered[index]),
            **{name: lambda name=name: plain(name) for name in _FUNCTIONS},
            **{f"{name}_filled": lambda name=name: filled(name) for name in _FUNCTIONS},
            **{f"first_wrong_{p}": lambda p=p: np.mean(self.wrong_at[index] == p) for p in _PLACES},
        }


class _TextRows:
    """The texts of a split, compared as they are but for white space at either end."""

    def __init__(self, generated: Sequence[str], references: Sequence[str]) -> None:
        self.generated = _array([text.strip() for text in generated])
        self.references = _array([text.strip() for text in references])

    def definitions(self, index: np.ndarray) -> Definitions:
        ours, right = self.generated[index], self.references[index]
        return {
            "accuracy": lambda: np.mean(ours == right),
            "bleu": lambda: bleu(ours, right),
            "rouge1": lambda: rouge1(ours, right),
        }


_FUNCTIONS = {
    function.__name__: function
    for function in (mae, rmse, median_absolute_error, mape, median_ape, log_mae, r2, log_r2, pearson, spearman)
}


def _other_definitions(count: int, cut: np.ndarray | None, stats: TokenStats | None) -> Definitions:
    """What does not hang on the texts themselves."""
    definitions: Definitions = {"count": lambda: count}
    if cut is not None:
        definitions["cut"] = lambda: np.mean(cut)
    if stats is not None:
        definitions["token_accuracy"] = lambda: token_accuracy(stats.correct, stats.tokens)
        definitions["perplexity"] = lambda: perplexity(stats.nll_sum, stats.tokens)
    return definitions


def _evaluate(definitions: Definitions) -> tuple[dict[str, float | None], dict[str, str]]:
    """Values by name, in the order of METRICS, and for each None among them its reason."""
    values: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    with np.errstate(all="ignore"):
        for name in METRICS:
            if name not in definitions:
                continue
            try:
                value = float(definitions[name]())
                if not math.isfinite(value):
                    raise Undefined("the value lies beyond double precision")
                values[name] = value
            except Undefined as reason:
                values[name], notes[name] = None, str(reason)
    return values, notes


def _check(generated, references, kind, groups, truncated) -> None:
    if kind not in ("number", "text"):
        raise ValueError(f'got kind={kind!r}, expected "number" or "text"')
    for name, rows in (("generated", generated), ("groups", groups), ("truncated", truncated)):
        if rows is not None and len(rows) != len(references):
            raise ValueError(
                f"got {len(rows)} entries in {name} and {len(references)} references, expected as many: "
                "pass one of each per question, in the same order"
            )
    if not len(references):
        raise ValueError("got no question, expected at least one: leave an empty split out")
    if groups is not None and "all" in set(groups):
        raise ValueError('got a group named "all", which is the name of the whole split: rename that group')


def _array(items: Sequence) -> np.ndarray:
    """A one-dimensional array of objects (numpy would otherwise make its own of some)."""
    array = np.empty(len(items), dtype=object)
    array[:] = list(items)
    return array


def _some(numbers: Sequence) -> None:
    if not len(numbers):
        raise Undefined("no answer holds a number")


def _differences(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    """p − y as float64, rounded once after exact subtraction."""
    _some(labels)
    with localcontext(_PRECISE):
        return (_array(predictions) - _array(labels)).astype(float)


def _relative_errors(predictions: Sequence[Decimal], labels: Sequence[Decimal]) -> np.ndarray:
    differences, sizes = _differences(predictions, labels), np.abs(_array(labels))
    kept = sizes != 0
    if not kept.any():
        raise Undefined("every reference is 0")
    return np.abs(differences[kept]) / sizes[kept].astype(float)


def _centred(numbers: Sequence[Decimal], what: str) -> np.ndarray:
    """x − x̄ as float64, subtracted exactly: 1e20 + 1 and 1e20 + 2 stay apart."""
    if len(numbers) < 2:
        raise Undefined("fewer than two answers hold a number")
    numbers = _array(numbers)
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


def _digits(number: Decimal) -> tuple[str, str]:
    """The digits before and after the decimal point, without a sign."""
    whole, _, fraction = f"{number.copy_abs():f}".partition(".")
    return whole, fraction


def _place(answer: Decimal, label: Decimal) -> str:
    position = first_wrong_digit(answer, label)
    return _PLACES[position] if position <= DIGITS else "later"
