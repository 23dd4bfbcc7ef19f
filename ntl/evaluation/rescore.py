"""Scoring recorded answers again: every metric that needs the text of the answers alone, without training anything.

Metrics are nested as in a record: `metrics[state][split][group][name]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ntl.evaluation.answer import Answers
from ntl.evaluation.metrics import METRICS
from ntl.evaluation.score import score
from ntl.rows import Row

TOLERANCE = 1e-9  # relative above 1, absolute below
OF_TOKENS = {"correct", "tokens", "nll_sum", "digits", "digit_error_sum"}  # inputs that a record does not keep

Metrics = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float | None]]]]


class Difference(NamedTuple):
    """One metric that is not what the record says; None is an undefined value or, in `computed`, none at all."""

    state: str
    split: str
    group: str
    name: str
    recorded: Any
    computed: float | None

    def __str__(self) -> str:
        where = ".".join(self[:4])
        return f"{where}: the record says {_shown(self.recorded)}, its predictions give {_shown(self.computed)}"


class Mismatch(ValueError):
    """Predictions that do not belong to these rows."""


def rescore(
    answered: Mapping[str, Mapping[str, Answers]], rows: Mapping[str, Sequence[Row]], *, kind: str, fill: str | None
) -> dict[str, dict[str, dict[str, dict[str, float | None]]]]:
    """Score recorded answers.

    Args:
        answered: by state and split, in the order of the rows.
        rows: by split, those that were answered.
        kind: "number" or "text", see `metrics.score`.
        fill: the number that counts for an answer without one: the median of the training answers.

    Raises:
        Mismatch: there are more or fewer answers than rows.
    """
    for state, splits in answered.items():
        for split, given in splits.items():
            if len(given.texts) != len(rows.get(split, ())):
                raise Mismatch(
                    f"got {len(given.texts)} answers for {state}, {split}, and {len(rows.get(split, ()))} questions, "
                    "expected as many"
                )
    return {
        state: {split: score(given, rows[split], kind=kind, fill=fill).metrics for split, given in splits.items()}
        for state, splits in answered.items()
    }


def compare(recorded: Metrics, computed: Metrics) -> tuple[list[Difference], dict[str, Any]]:
    """Compare the metrics of a record with those computed again.

    Returns:
        Every difference, and the metrics that the record lacks, nested as in a record.
    """
    differences: list[Difference] = []
    lacking: dict[str, Any] = {}
    ours, theirs = dict(_leaves(computed)), dict(_leaves(recorded))
    for place, value in ours.items():
        if place not in theirs:
            state, split, group, name = place
            lacking.setdefault(state, {}).setdefault(split, {}).setdefault(group, {})[name] = value
        elif not _equal(theirs[place], value):
            differences.append(Difference(*place, theirs[place], value))
    for place, value in theirs.items():
        state, _, _, name = place
        of_text = name in METRICS and not OF_TOKENS & set(METRICS[name].inputs)
        if place not in ours and state in computed and of_text:
            differences.append(Difference(*place, value, None))
    return differences, lacking


def _leaves(metrics: Metrics) -> Iterator[tuple[tuple[str, str, str, str], Any]]:
    for state, splits in metrics.items():
        for split, groups in splits.items():
            for group, values in groups.items():
                for name, value in values.items():
                    yield (state, split, group, name), value


def _equal(recorded: Any, computed: float | None) -> bool:
    if recorded is None or computed is None or isinstance(recorded, list):
        return recorded is computed
    return math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(value: Any) -> str:
    return "no value" if value is None else f"{value!r}"
