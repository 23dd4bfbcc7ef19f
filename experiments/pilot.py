"""The spread of paired differences over seeds, from which each claim's detectable effect is computed.

The pilot's seeds are used for nothing else, and its means are no evidence for or against a claim.
"""

from experiments.analysis.table import Table

MAIN = Table(
    title="Pilot: spread of paired differences",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae", "mae", "mape"),
    baseline="ce",
    notes=(
        "Only the standard deviation of the paired differences is used, to compute the effect that the planned seeds "
        "can detect (`results/claims.md`). The seeds differ from those of the judged runs.",
    ),
)
TABLES = (MAIN,)
