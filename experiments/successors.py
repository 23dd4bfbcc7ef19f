"""Two later losses on number tokens beside NTL-WAS, under one protocol: DIST2Loss and the Digit Entropy Loss.

Arithmetic asks for exact digits, rJokes for a number near the right one. Each loss has its own published weight.
"""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Comparison, Table

SOURCES = (
    "DIST2Loss (Teaching Metric Distance to Discrete Autoregressive Language Models, ICLR 2026): CE + 0.1·KL to a "
    "target that falls off with the squared distance, τ = 1. The published α weighs a sum over number positions; here "
    "it weighs their mean, as λ does in the other arms, so DIST2Loss has less weight than published. Its authors "
    "report, on a regression task of their own, RMSE 0.124 with place-value weights and contrastive targets, 0.137 "
    "without the first, 0.139 without the second, 0.154 with CE.",
    "DEL (Digit Entropy Loss, arXiv 2605.20369): CE + 0.01·DEL. Its authors report the mean accuracy over seven "
    "benchmarks with Qwen2.5-1.5B: CE 52.8, NTL-WAS 53.8, DIST2Loss 53.1, DEL 55.4. They re-implement DIST2Loss with a "
    "softmax over digits only, and average NTL's distance over digits and positions, a tenth of the paper's NTL-WAS.",
    "None of these was measured on the tasks here, so no published number stands in the table. λ is each method's own "
    "published one and was not tuned here.",
)
ARITHMETIC = Table(
    title="Later losses on arithmetic",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae"),
    arms=("ce", "ntl_was@0.3", "dist2@0.1", "del@0.01"),
    baseline="ce",
    comparisons=(
        Comparison("dist2@0.1", "ntl_was@0.3", "DIST2Loss against NTL-WAS"),
        Comparison("del@0.01", "ntl_was@0.3", "DEL against NTL-WAS"),
    ),
    notes=SOURCES,
)
RJOKES = Table(
    title="Later losses on rJokes",
    name="rjokes",
    splits=("test",),
    metrics=("rmse", "mae", "spearman"),
    arms=("rjokes/ce", "rjokes/ntl_was@2.0", "rjokes/dist2@0.1", "rjokes/del@0.01"),
    baseline="rjokes/ce",
    comparisons=(
        Comparison("rjokes/dist2@0.1", "rjokes/ntl_was@2.0", "DIST2Loss against NTL-WAS"),
        Comparison("rjokes/del@0.01", "rjokes/ntl_was@2.0", "DEL against NTL-WAS"),
    ),
    notes=SOURCES,
)
TABLES = (ARITHMETIC, RJOKES)
FIGURES = (Figure(ARITHMETIC), Figure(RJOKES, metrics=("rmse", "spearman")))
