"""Calibration of the experiments on multiplication: operands, model and learning rate, by CE's validation split."""

from experiments.analysis.table import Table
from experiments.calibration import rule

METRICS = ("accuracy", "mape", "log_mae")
NOTES = (rule("multiplication", "MAPE by a tenth", "MAPE"), "`@` gives the learning rate.")
TABLES = (
    Table(
        "Calibration of multiplication: to 3 digits; CE",
        ("validation",),
        METRICS,
        "gpt2_nano@1e-3",
        arms=("gpt2_nano@1e-3", "gpt2_nano@2e-3", "t5_nano@1e-3"),
        notes=NOTES,
    ),
    Table(
        "Calibration of multiplication: to 2 digits; CE",
        ("validation",),
        METRICS,
        "gpt2_nano@1e-3/2_digits",
        name="2_digits",
        arms=("gpt2_nano@1e-3/2_digits",),
        notes=NOTES,
    ),
)
