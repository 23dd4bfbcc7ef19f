"""Declaring a metric: one function, registered under its name with the way it is shown and judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

Better = Literal["higher", "lower"] | None
Kind = Literal["score", "error", "fit", "share", "count"]

# What a metric can be computed from. Its parameters name what it takes, and it is absent where one of these is.
# Arrays are of shape (questions,), over the questions of one group.
INPUTS = {
    "right": "whether each answer is right (bool): equal numbers, or texts equal but for white space at either end",
    "predictions": "numbers: the number in each answer that has one (Decimal), clipped; see `errors.clip`",
    "labels": "numbers: the reference for each of `predictions` (Decimal)",
    "answers": "numbers: the number in every answer (Decimal, not clipped), None for an answer without one",
    "targets": "numbers: the reference for each of `answers` (Decimal)",
    "paper_answers": "numbers: as `answers`, read as the paper's evaluation reads them (`paper_number`)",
    "paper_targets": "numbers: as `targets`, read so; None where that reader finds no number",
    "wrong_at": "numbers: place of the first wrong digit of every answer (str), empty for a right one or none",
    "generated": "texts, and numbers whose references contain words: every answer, stripped (str)",
    "references": "texts, and numbers whose references contain words: the reference for each of `generated` (str)",
    "truncated": "where this was counted: whether each answer was cut at the generation limit (bool)",
    "correct": "teacher forcing: number of reference tokens predicted right (int)",
    "tokens": "teacher forcing: number of reference tokens (int)",
    "nll_sum": "teacher forcing: sum of the negative log-likelihood of the reference tokens (float)",
    "digits": "teacher forcing: number of reference tokens that are digits (int)",
    "digit_error_sum": "teacher forcing: sum of |expected digit − digit| over these (float)",
}


class Undefined(ValueError):
    """The metric has no value for these answers; the message says why."""


@dataclass(frozen=True)
class Metric:
    """How a metric is shown, judged and computed.

    `kind` says what counts as a difference: a "score" lies in 0–1 and is compared absolutely, an "error" is compared
    relatively, a "fit" is R² or a correlation, a "share" or "count" describes and is not judged.

    Attributes:
        function: computes it from `inputs`; None for a metric that is not computed from answers.
        filled: `predictions` and `labels` cover all questions; an answer without a number counts as the trivial one.
    """

    title: str
    better: Better
    kind: Kind
    format: str = ".3f"
    function: Callable[..., float] | None = field(default=None, repr=False, compare=False)
    inputs: tuple[str, ...] = ()
    filled: bool = False


METRICS: dict[str, Metric] = {}


def metric(
    title: str, *, better: Better, kind: Kind, format: str = ".3f", name: str | None = None
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Declare a metric: the decorated function computes it for one group of questions.

    The function's parameters are names of `INPUTS`. It returns a number, or raises `Undefined` where there is none. A
    metric of `predictions` has a second value under its name with `_filled`, in which answers without a number count.

    Args:
        title: in tables.
        better: direction of improvement, or None.
        kind: see `Metric`.
        format: of a value in tables.
        name: in records; by default the function's name.

    Raises:
        ValueError: the name is taken, or a parameter is no input.
    """

    def register(function: Callable[..., float]) -> Callable[..., float]:
        own, inputs = name or function.__name__, tuple(inspect.signature(function).parameters)
        if not inputs or set(inputs) - set(INPUTS):
            raise ValueError(
                f"metric '{own}': got the parameters ({', '.join(inputs)}), expected some of {', '.join(INPUTS)}"
            )
        declared = Metric(title, better, kind, format, function, inputs)
        variants = {own: declared}
        if "predictions" in inputs:
            variants[f"{own}_filled"] = replace(declared, title=f"{title} (filled)", filled=True)
        for variant in variants:
            if variant in METRICS:
                raise ValueError(
                    f"got two metrics named '{variant}', expected one; rename the one in {function.__module__}"
                )
        METRICS.update(variants)
        return function

    return register
