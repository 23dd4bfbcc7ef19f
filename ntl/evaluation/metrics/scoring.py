"""Scoring a split: every metric that applies, for all questions and for each group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ntl.evaluation.metrics.base import METRICS, Undefined
from ntl.evaluation.metrics.digits import place
from ntl.evaluation.metrics.errors import as_objects, clip
from ntl.number_grammar import paper_number, parse_number

Inputs = dict[str, Any]  # by the names of `base.INPUTS`


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
    digits: int = 0  # tokens that are single digits
    digit_error_sum: float = 0.0  # |expected digit − digit|

    def __add__(self, other: TokenStats) -> TokenStats:
        return TokenStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


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
        kind: "number" if the number of an answer counts (see `ntl.number_grammar`), "text" if the text itself does.
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
        inputs = rows.inputs(index)
        if truncated is not None:
            inputs["truncated"] = np.asarray(truncated, dtype=bool)[index]
        if group in (token_stats or {}):
            inputs |= vars(token_stats[group])
        scores.metrics[group], scores.notes[group] = _evaluate(inputs, partial(rows.filled, index))
    return scores


class _NumberRows:
    """The numbers of a split, parsed once: shape (questions,) throughout."""

    def __init__(self, generated: Sequence[str], references: Sequence[str], fill: Decimal | str | None) -> None:
        labels = [parse_number(text) for text in references]
        if None in labels:
            row = labels.index(None)
            raise ValueError(
                f"got a reference without a number (question {row}: {references[row]!r}), expected one in each, as "
                'docs/numbers.md says: correct it, or score such answers with kind="text"'
            )
        answers = [parse_number(text) for text in generated]
        pairs = list(zip(answers, labels, strict=True))
        self.answers, self.labels = as_objects(answers), as_objects(labels)
        self.paper_answers, self.paper_targets = (
            as_objects([paper_number(text) for text in texts]) for texts in (generated, references)
        )
        self.answered = np.array([answer is not None for answer in answers])
        self.right = np.array([answer == label for answer, label in pairs])
        self.wrong_at = np.array(["" if a is None or a == label else place(a, label) for a, label in pairs])
        # Questions without an answer hold their label here, which is never read.
        self.clipped = clip([label if answer is None else answer for answer, label in pairs], self.labels)
        self.with_fill = None
        if fill is not None:
            self.with_fill = clip([Decimal(fill) if answer is None else answer for answer in answers], self.labels)
        words = any(re.search("[A-Za-z]", text) for text in references)
        self.texts = _TextRows(generated, references) if words else None

    def inputs(self, index: np.ndarray) -> Inputs:
        kept = index[self.answered[index]]
        return (self.texts.inputs(index) if self.texts else {}) | {
            "right": self.right[index],
            "predictions": self.clipped[kept],
            "labels": self.labels[kept],
            "answers": self.answers[index],
            "targets": self.labels[index],
            "paper_answers": self.paper_answers[index],
            "paper_targets": self.paper_targets[index],
            "wrong_at": self.wrong_at[index],
        }

    def filled(self, index: np.ndarray) -> Inputs:
        """What the metrics ending in `_filled` take instead."""
        if self.answered[index].all():
            return {}
        if self.with_fill is None:
            raise Undefined("some answers hold no number, and no number was given to fill in")
        return {"predictions": self.with_fill[index], "labels": self.labels[index]}


class _TextRows:
    """The texts of a split, compared as they are but for white space at either end."""

    def __init__(self, generated: Sequence[str], references: Sequence[str]) -> None:
        self.generated = as_objects([text.strip() for text in generated])
        self.references = as_objects([text.strip() for text in references])

    def inputs(self, index: np.ndarray) -> Inputs:
        ours, right = self.generated[index], self.references[index]
        return {"right": ours == right, "generated": ours, "references": right}

    def filled(self, index: np.ndarray) -> Inputs:
        return {}  # there is no number to fill in


def _evaluate(inputs: Inputs, filled: Callable[[], Inputs]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Values by name, in the order of METRICS, and for each None among them its reason."""
    values: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    with np.errstate(all="ignore"):
        for name, metric in METRICS.items():
            if metric.function is None or not inputs.keys() >= set(metric.inputs):
                continue
            try:
                given = inputs | filled() if metric.filled else inputs
                value = float(metric.function(**{key: given[key] for key in metric.inputs}))
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
