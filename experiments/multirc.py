"""MultiRC: answers in words, which the Number Token Loss must not harm."""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Comparison, Table

MAIN = Table(
    title="MultiRC: answers in words",
    splits=("test",),
    metrics=("bleu", "rouge1", "token_accuracy"),
    baseline="ce",
    comparisons=(
        Comparison("ntl_was@2.0", "ce/subword", "loss and tokenization, as published"),
        Comparison("ntl_was@2.0/subword", "ce/subword", "loss, with subword tokens"),
        Comparison("ce", "ce/subword", "tokenization"),
    ),
    paper_setting="T5-small with hub weights by the published commands, at most 2.5 million steps; CE with subwords",
    notes=(
        "BLEU is sacrebleu's over the whole split, divided by 100; the published 0.13 may be on either scale and was "
        "averaged over batches.",
        "The published test file has no labels: its validation file is the test split here, and checkpoints are chosen "
        "on passages of train.",
        "Token accuracy is teacher-forced, over the tokens of the arm's own tokenizer: not comparable between "
        "tokenizations.",
    ),
)
TABLES = (MAIN,)
FIGURES = (Figure(MAIN, metrics=("bleu", "rouge1")),)
