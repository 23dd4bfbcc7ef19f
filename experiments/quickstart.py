"""The smallest complete comparison: cross-entropy with and without the Number Token Loss, two seeds each."""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Table

MAIN = Table(
    title="Quickstart: CE and CE + NTL-WAS on easy arithmetic",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae"),
    baseline="ce",
    notes=("Two seeds show that the path works, not which loss is better: see `ablation` for that.",),
)
TABLES = (MAIN,)
FIGURES = (Figure(MAIN),)
