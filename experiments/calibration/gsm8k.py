"""Calibration of the experiments on GSM8K: which learning rate, by CE's validation split."""

from experiments.analysis.table import Table
from experiments.calibration import rule

TABLES = (
    Table(
        "Calibration of GSM8K; CE",
        ("validation",),
        ("accuracy", "log_mae", "token_accuracy"),
        "t5_nano@1e-3",
        notes=(rule("gsm8k", "accuracy by 0.1", "accuracy"), "`@` gives the learning rate.", "A floor is expected."),
    ),
)
