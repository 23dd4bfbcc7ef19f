"""Calibration of the experiments on mathematics: which difficulties and learning rate, by CE's validation split."""

from experiments.analysis.table import EACH, Table
from experiments.calibration import rule

EASY = ("easy@1e-3", "easy@5e-4", "easy@2e-3")
METRICS = ("accuracy", "log_mae", "token_accuracy")
NOTES = (rule("mathematics", "accuracy by 0.1", "accuracy"), "`@` gives the learning rate.")
TABLES = (
    Table("Calibration of mathematics: easy; CE", ("validation",), METRICS, "easy@1e-3", arms=EASY, notes=NOTES),
    Table(
        "Calibration of mathematics: all difficulties, as published; CE",
        ("validation",),
        METRICS,
        "all@1e-3",
        name="all",
        arms=("all@1e-3",),
        notes=NOTES,
    ),
    Table(
        "Calibration of mathematics by module: easy; CE",
        ("validation",),
        ("accuracy",),
        "easy@1e-3",
        name="modules",
        arms=EASY,
        groups=EACH,
        notes=NOTES,
    ),
)
