"""Calibration of the experiments on rJokes: how much of a joke and which learning rate, by CE's validation split."""

from experiments.analysis.table import Table
from experiments.calibration import rule

TABLES = (
    Table(
        "Calibration of rJokes; CE",
        ("validation",),
        ("rmse", "mae", "spearman"),
        "96_tokens@1e-3",
        notes=(rule("rjokes", "the RMSE by a tenth", "RMSE"), "`@` gives the learning rate."),
    ),
)
