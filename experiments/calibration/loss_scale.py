"""How strongly NTL acts beside CE: the effective λ and the gradients of every data set, and the squash factor.

`python -m experiments loss_scale` measures it on training text, before any training and without any score.
"""

from __future__ import annotations

from pathlib import Path

from experiments.analysis.loss_scale import TRAINED, by_tokenizer, effective_weight, labels_per_number, load
from experiments.analysis.rendering import number
from experiments.analysis.table import Computed, Section

NOTES = (
    "Measured by `python -m experiments loss_scale` on training text, with models as they are initialised.",
    "λ·NTL is a mean over number labels and CE one over all labels: per number token, NTL weighs λ · labels / numbers "
    "relative to CE. The effective λ is the one that weighs as much with the published tokenizer on the same text.",
    "Gradients: mean of the ratio of norms over batches and seeds; with the published tokenizer, of a model of the "
    "same layers. T5's number tokens are those of its vocabulary by the rule of this project.",
    "Rule for the squash factor: the one, to two digits, at which the ratio equals that of digits, λ being the same.",
)


def tables(results: Path) -> list[Computed]:
    """The table of what was measured, if anything was."""
    return (
        [Computed("How strongly NTL acts beside CE", lambda: sections(results), notes=NOTES)] if load(results) else []
    )


def sections(results: Path) -> list[Section]:
    """Effective λ by data set and encoding; gradients by tokenizer."""
    rows = load(results)
    weights = [
        [
            own["dataset"],
            own["encoding"],
            number(labels_per_number(own)),
            f"{number(labels_per_number(published))} ({published['tokenizer']})",
            number(labels_per_number(own) / labels_per_number(published)),
            f"{own['weight']:g} → {number(effective_weight(own, published))}",
        ]
        for own, published in by_tokenizer(rows)
        if own["squash"] is None
    ]
    gradients = [
        [
            row["dataset"],
            row["encoding"] + ("" if row["squash"] is None else f", squash {row['squash']:g}"),
            row["tokenizer"],
            str(row["number_tokens"]),
            f"{row['largest']:,g}",
            f"{row['weight']:g}",
            number(row["gradient_ratio"]),
        ]
        for row in rows
    ]
    return [
        (
            "Labels per number label",
            ["data set", "encoding", f"{TRAINED} tokenizer", "published tokenizer", "factor", "λ → effective λ"],
            weights,
        ),
        (
            "Gradients of a fresh model",
            ["data set", "encoding", "tokenizer", "number tokens", "largest", "λ", "norm of ∇ λNTL ÷ norm of ∇ CE"],
            gradients,
        ),
    ]
