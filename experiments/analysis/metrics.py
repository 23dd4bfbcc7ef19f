"""What tables and verdicts need beyond `ntl.evaluation.metrics`: arrow, sign, margin, median beside a mean."""

from __future__ import annotations

from math import inf

from ntl.evaluation.metrics import METRICS, Metric

# Shown beside a mean over questions, which one answer of thirty digits can rule.
MEDIANS = {"mae": "median_absolute_error", "rmse": "median_absolute_error", "mape": "median_ape"}
# Not scored from answers: measured by `python -m experiments runtime`.
_MEASURED = {"step_time_ratio": Metric("Step time / CE", "lower", "share")}
# Half width, in the metric's own unit, within which a claim of no effect holds; of other metrics no such claim is made.
_MARGINS = {
    "accuracy": 0.02,
    "accuracy_isclose": 0.02,
    "bleu": 0.01,
    "rouge1": 0.01,
    "rmse": 0.05,
    "mape": 0.05,
    "step_time_ratio": 0.01,
}


def describe(name: str) -> Metric:
    """How a metric is shown and judged; one that is described nowhere is shown under its own name."""
    return METRICS.get(name) or _MEASURED.get(name) or Metric(name.replace("_", " "), None, "share")


def title(name: str) -> str:
    """The metric's name in print, with an arrow in the better direction."""
    about = describe(name)
    return about.title + {"higher": " ↑", "lower": " ↓", None: ""}[about.better]


def direction(name: str) -> int:
    """+1 where higher is better, −1 where lower is."""
    return -1 if describe(name).better == "lower" else 1


def margin(name: str, one_sided: bool = False) -> tuple[float, float]:
    """The margin (low, high) of equivalence, of a difference signed so that positive is better.

    One-sided, only how much worse is bounded.

    Raises:
        ValueError: the metric has no margin, so that no claim of no effect can be made of it.
    """
    half = _MARGINS.get(name)
    if half is None:
        raise ValueError(
            f"got a claim of no effect on '{name}', which has no margin; state one in experiments/analysis/metrics.py"
        )
    return -half, inf if one_sided else half
