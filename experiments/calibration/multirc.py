"""Calibration of the experiments on MultiRC: which learning rate, by CE's validation split."""

from experiments.analysis.table import Table
from experiments.calibration import rule

TABLES = (
    Table(
        "Calibration of MultiRC; CE",
        ("validation",),
        ("rouge1", "bleu", "token_accuracy"),
        "t5_nano@1e-3",
        notes=(rule("multirc", "ROUGE-1 by 0.1", "ROUGE-1"), "`@` gives the learning rate.", "A floor is expected."),
    ),
)
