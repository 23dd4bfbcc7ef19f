"""Ablation of the loss on arithmetic: the kind of NTL, its weight λ, Gaussian targets, and tokenization.

All arms split digits but those named `/subword`; `@` gives λ, and σ for the Gaussian arms (their λ is 0.3).
"""

from experiments.analysis.figures import Figure
from experiments.analysis.table import Comparison, Table

PAPER = (
    "hub weights, at most 2.5 million steps, `add_sub_multiple` with 33,333 training questions of each difficulty, "
    "extrapolation to `add_sub_multiple_longer`"
)
TOKENIZATION = (
    "In the published commands CE kept T5's own subword tokens while the NTL and Gaussian arms split digits. Here the "
    "arms that split digits differ from `ce` in the loss alone, as `ntl_was@0.3/subword` does from `ce/subword`; the "
    "published pairing stands under the further comparisons."
)
COMPARISONS = (
    Comparison("ntl_was@0.3", "ce/subword", "loss and tokenization, as published"),
    Comparison("ntl_mae@0.3", "ce/subword", "loss and tokenization, as published"),
    Comparison("ce", "ce/subword", "tokenization"),
    Comparison("ntl_was@0.3/subword", "ce/subword", "loss, with subword tokens"),
    Comparison("ntl_mse@2.0", "ntl_mse@0.15", "λ of NTL-MSE"),
    Comparison("ntl_was@0.3", "ntl_was@2.0", "λ of NTL-WAS"),
    Comparison("ntl_mae@0.3", "ntl_was@0.3", "kind of NTL"),
    Comparison("ntl_huber@0.3", "ntl_was@0.3", "kind of NTL"),
    Comparison("gce_ntl_was@0.5", "gce@0.5", "NTL-WAS on top of GCE"),
    Comparison("gce_ntl_was@1", "gce@1", "NTL-WAS on top of GCE"),
)

MAIN = Table(
    title="Ablation of the loss on arithmetic",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae", "accuracy_paper_parser"),
    baseline="ce",
    comparisons=COMPARISONS,
    paper_setting=PAPER,
    notes=(
        TOKENIZATION,
        "`ntl_was@0` trains with λ = 0 and must equal `ce` exactly: it checks the suite, not the loss.",
    ),
)
HEADLINE = Table(
    title="CE against CE + NTL on arithmetic",
    name="headline",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae"),
    arms=("ce", "ntl_was@0.3", "ntl_mae@0.3"),
    baseline="ce",
    paper_setting=PAPER,
)
TABLES = (
    MAIN,
    HEADLINE,
    Table(
        title="Ablation of the loss on arithmetic: absolute errors",
        name="mae",
        splits=("interpolate", "extrapolate"),
        metrics=("mae",),
        baseline="ce",
        paper_setting=PAPER,
        notes=(TOKENIZATION, "The median stands beside the mean because a single long answer can rule a mean."),
    ),
)
FIGURES = (Figure(MAIN, metrics=("accuracy", "log_mae")),)
