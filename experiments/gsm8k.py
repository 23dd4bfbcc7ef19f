"""GSM8K: word problems with written solutions; accuracy is that of the number after `####`."""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Comparison, Table

MAIN = Table(
    title="GSM8K: word problems",
    splits=("test",),
    metrics=("accuracy", "log_mae", "rouge1", "accuracy_paper_parser"),
    baseline="ce",
    comparisons=(
        Comparison("ntl_was@0.3", "ce/subword", "loss and tokenization, as published"),
        Comparison("ntl_was@0.3/subword", "ce/subword", "loss, with subword tokens"),
        Comparison("ce", "ce/subword", "tokenization"),
    ),
    paper_setting="T5-3B with hub weights, at most 2.5 million steps, best checkpoint kept; CE with subwords",
    notes=(
        "Answers are whole solutions without calculator marks. Separators of thousands are removed and a zero is put "
        "before a bare decimal point.",
        "Where digits are split, T5's `▁$1` is `▁$ 1` (published: `▁ $ 1`), with the same number token; with subword "
        "tokens it is one piece and no number token, there and here.",
        "A model from scratch that has seen 6,353 problems stands on the floor; what the loss does to reasoning needs "
        "pretrained weights.",
    ),
)
TABLES = (MAIN,)
FIGURES = (Figure(MAIN, metrics=("accuracy",)),)
