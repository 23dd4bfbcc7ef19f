"""Trivial predictors: constant answers drawn from the training answers alone, scored like any model's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Literal

from ntl.number_grammar import parse_number
from ntl.text import plain_number

TRIVIAL = ("mean", "median", "most_frequent")
CEILING = "ceiling"  # beside them in a record: a model that predicts every target, see `score.perfect`
DECIMALS = 6  # that the mean is rounded to, half to even


def trivial_answers(training_answers: Iterable[str], kind: Literal["number", "text"] = "number") -> dict[str, str]:
    """The one answer that each trivial predictor gives to every question, as text.

    Numbers of the training answers (`ntl.number_grammar`): the mean rounded to six decimals, the median (the mean of
    the middle two for an even count, not rounded), the most frequent number (the smallest of several). Texts: the most
    frequent text, white space at either end removed (the first in alphabetical order of several).

    Returns:
        Text by predictor: "mean", "median", "most_frequent"; for texts "most_frequent" only.

    Raises:
        ValueError: no training answer, or one without a number where numbers are expected.
    """
    if kind not in ("number", "text"):
        raise ValueError(f'got kind={kind!r}, expected "number" or "text"')
    counts = Counter(map(str.strip, training_answers) if kind == "text" else _numbers(training_answers))
    if not counts:
        raise ValueError("got no training answer, expected at least one: check the training split")
    most_frequent = min(counts, key=lambda answer: (-counts[answer], answer))
    if kind == "text":
        return {"most_frequent": most_frequent}
    with localcontext(_exact(counts)):
        mean = sum(number * count for number, count in counts.items()) / counts.total()
        mean = mean.quantize(Decimal(1).scaleb(-DECIMALS), rounding=ROUND_HALF_EVEN)
    return {
        "mean": plain_number(mean),
        "median": plain_number(_median(counts)),
        "most_frequent": plain_number(most_frequent),
    }


def _numbers(answers: Iterable[str]) -> Iterable[Decimal]:
    for row, answer in enumerate(answers):
        number = parse_number(answer)
        if number is None:
            raise ValueError(
                f"got a training answer without a number (question {row}: {answer!r}), expected one in each: "
                'use kind="text" for such answers'
            )
        yield number


def _median(counts: Counter[Decimal]) -> Decimal:
    """The median of the counted numbers, exact."""
    lower, upper = (counts.total() - 1) // 2, counts.total() // 2
    seen, middle = 0, []
    for number in sorted(counts):
        before, seen = seen, seen + counts[number]
        middle += [number for rank in (lower, upper) if before <= rank < seen]
    with localcontext(_exact(counts)):
        return (middle[0] + middle[1]) / 2


def _exact(numbers: Iterable[Decimal]) -> Context:
    """A context in which sums of these numbers stay exact, and their mean is right to the last rounded decimal."""
    first = max(number.adjusted() for number in numbers)
    last = min(-DECIMALS, *(number.as_tuple().exponent for number in numbers))
    return Context(prec=max(1, first - last) + 30)
