"""Products of whole numbers on a decoder-only model."""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Comparison, Table

MAIN = Table(
    title="Multiplication",
    splits=("interpolate", "extrapolate"),
    metrics=("mape", "accuracy", "log_mae"),
    baseline="ce",
    comparisons=(
        Comparison("ntl_was@0.3/subword", "ce/subword", "loss, with subword tokens"),
        Comparison("ce", "ce/subword", "tokenization"),
        Comparison("ntl_was@0.3", "ce/subword", "loss and tokenization"),
    ),
    paper_setting="operands of 1 to 5 digits in training, to 6 in the test; steps not public; digits in all arms",
    notes=(
        "Published: interpolation with GPT-2 small, extrapolation with GPT-2 medium.",
        "MAPE is a share (1 is 100 %); products of 0 have none. The median stands beside it because a single long "
        "answer can rule a mean.",
    ),
)
TABLES = (MAIN,)
FIGURES = (Figure(MAIN, metrics=("mape", "accuracy")),)
