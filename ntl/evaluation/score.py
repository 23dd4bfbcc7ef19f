"""Scoring: the answers to a split are compared with its reference answers, text with text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ntl.evaluation import metrics
from ntl.evaluation.answer import Answers
from ntl.evaluation.baselines import trivial_answers
from ntl.evaluation.metrics import Scores, TokenStats
from ntl.rows import Row

if TYPE_CHECKING:
    from ntl.data import EncodedDataset
    from ntl.encodings import Encoding


def score(answers: Answers, rows: Sequence[Row], *, kind: str, fill: str | None, group_by: str = "module") -> Scores:
    """Score answers against the rows' reference answers, for all of them and for each group that rows name.

    Args:
        group_by: field of the rows that names the group; rows without it are in no group.
        kind: "number" or "text": what counts in an answer.
        fill: the number counted for an answer without one, in the metrics that end in `_filled`.
    """
    groups = [row[group_by] for row in rows] if rows and group_by in rows[0] else None
    stats: dict[str, TokenStats] = {}
    for index, tokens in enumerate(answers.tokens):
        for group in ("all", *([groups[index]] if groups else [])):
            stats[group] = stats.get(group, TokenStats()) + tokens
    return metrics.score(
        answers.texts,
        [row["answer"] for row in rows],
        kind=kind,
        fill=fill,
        groups=groups,
        token_stats=stats,
        truncated=answers.truncated or None,
    )


def constant(text: str, rows: Sequence[Row]) -> Answers:
    """The answers of a predictor that says the same to every question."""
    return Answers([text] * len(rows), [], [])


def perfect(data: EncodedDataset, encoding: Encoding) -> Answers:
    """The answers of a model that predicts every target of a split: what the encoding loses, it cannot write."""
    answers = Answers([encoding.perfect_answer(answer) for _, answer in data], [], [])
    encoding.take_report()  # counts what models write
    return answers


def trivial(
    training: Sequence[Row], rows: Mapping[str, Sequence[Row]], kind: str
) -> tuple[dict[str, dict[str, Answers]], str | None]:
    """The answers of the trivial predictors by state and split, and the number that fills in for missing ones."""
    constants = trivial_answers((row["answer"] for row in training), kind)
    answers = {state: {split: constant(text, rows[split]) for split in rows} for state, text in constants.items()}
    return answers, constants.get("median")
