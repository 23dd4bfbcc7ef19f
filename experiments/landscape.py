"""The losses as functions of the prediction, for the label 4 among the digits: computed by `ntl.losses`, not trained.

A curve: nearly all mass on one digit, and which. A heat map: mass on 0 and on 8, the rest on the right digit. NTL-MSE
looks at the expected value alone, so that half on 0 and half on 8 costs as little as being right; NTL-WAS is zero only
where all mass is on the label, and moving mass to the label always lowers it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.analysis import figures
from experiments.analysis.claims import Outcome
from experiments.analysis.published import Claim
from experiments.analysis.rendering import number
from experiments.analysis.table import Computed, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from numpy.typing import NDArray

DIGITS = 10
LABEL = 4
SURE = 0.9  # mass on the digit of the curve; the rest is spread evenly
LEAST = 1e-9  # in place of no mass at all, which no finite logits give
LOSSES = {"ce": "CE", "ntl_mse": "NTL-MSE", "ntl_was": "NTL-WAS"}
SAMPLES = 10_000


def losses(predictions: NDArray, name: str) -> NDArray:
    """The loss (…) of predicted distributions (…, 10) over the digits, for the label 4."""
    import torch

    from ntl.losses import functional
    from ntl.numbers import NumberVocabulary

    digits = NumberVocabulary(torch.arange(DIGITS), torch.arange(DIGITS, dtype=torch.float64), DIGITS)
    logits = torch.tensor(np.log(np.maximum(predictions, LEAST))).reshape(-1, DIGITS)
    labels = torch.full((len(logits),), LABEL)
    if name == "ce":
        found = functional.cross_entropy(logits, labels, digits, reduction="none")
    else:
        kind = name.removeprefix("ntl_")
        found = functional.number_token_loss(logits, labels, digits, kind=kind, reduction="none")
    return found.numpy().reshape(predictions.shape[:-1])


def mass(**shares: float) -> NDArray:
    """A distribution (10,) from shares by digit: `mass(d0=0.5, d8=0.5)`."""
    found = np.zeros(DIGITS)
    for digit, share in shares.items():
        found[int(digit[1:])] = share
    return found


PREDICTIONS = {
    "all on 4": mass(d4=1),
    "all on 5": mass(d5=1),
    "all on 9": mass(d9=1),
    "half on 0, half on 8": mass(d0=0.5, d8=0.5),
    "half on 3, half on 5": mass(d3=0.5, d5=0.5),
    "nine tenths on 5, a tenth on 4": mass(d5=0.9, d4=0.1),
    "even": np.full(DIGITS, 1 / DIGITS),
}


def nearer(predictions: NDArray, step: float = 0.01) -> NDArray:
    """The same predictions with the share `step` of their mass moved to the label."""
    return (1 - step) * predictions + step * mass(d4=1)


@cache
def stuck(name: str) -> tuple[float, float]:
    """Shares of wrong predictions from which moving a hundredth of the mass to the label does not lower the loss.

    Returns:
        Among distributions drawn evenly (Dirichlet), and among those with all mass on two digits, one on either side of
        the label, whose expected value is the label.
    """
    drawn = np.random.default_rng(0).dirichlet(np.ones(DIGITS), SAMPLES)
    balanced = [
        mass(**{f"d{low}": (high - LABEL) / (high - low), f"d{high}": (LABEL - low) / (high - low)})
        for low in range(LABEL)
        for high in range(LABEL + 1, DIGITS)
    ]
    return tuple(float(np.mean(losses(nearer(p), name) > losses(p, name) - 1e-9)) for p in (drawn, np.stack(balanced)))


def sections() -> list[Section]:
    """The tables: what each prediction costs, and how often a loss sees no way to the label."""
    names = ["ce", "ntl_mse", "ntl_mae", "ntl_huber", "ntl_was"]
    titles = {**LOSSES, "ntl_mae": "NTL-MAE", "ntl_huber": "NTL-Huber"}
    expected = {row: number(float(p @ np.arange(DIGITS))) for row, p in PREDICTIONS.items()}
    cost = {name: losses(np.stack(list(PREDICTIONS.values())), name) for name in names}
    return [
        (
            "Loss for the label 4",
            ["prediction", "expected value", *(titles[name] for name in names)],
            [
                [row, expected[row], *(number(float(cost[name][index])) for name in names)]
                for index, row in enumerate(PREDICTIONS)
            ],
        ),
        (
            "Predictions with no way down towards the label",
            ["predictions", "count", *(titles[name] for name in names)],
            [
                ["drawn evenly", f"{SAMPLES:,}", *(number(stuck(name)[0]) for name in names)],
                ["on two digits, expected value 4", "20", *(number(stuck(name)[1]) for name in names)],
            ],
        ),
    ]


def judge(claim: Claim, results: Path) -> Outcome:
    """Whether NTL-MSE has minima where the prediction is wrong, and NTL-WAS none."""
    half = PREDICTIONS["half on 0, half on 8"]
    mse, was = (float(losses(half, name)) for name in ("ntl_mse", "ntl_was"))
    holds = mse < 1e-6 < was and stuck("ntl_mse")[1] == 1 and max(stuck("ntl_was")) == 0
    return Outcome(
        claim,
        "reproduced" if holds else "opposite",
        scale="analytic",
        command="python -m experiments tables landscape",
        remark=f"half on 0 and half on 8 costs {number(mse)} by NTL-MSE and {number(was)} by NTL-WAS, which falls on "
        f"the way to the label from each of {SAMPLES:,} predictions",
    )


def curve() -> Canvas:
    """Loss against the digit that nine tenths of the mass are on, each loss divided by its largest value."""
    canvas = _canvas(1)
    (ax,) = canvas.axes
    sure = np.full((DIGITS, DIGITS), (1 - SURE) / (DIGITS - 1)) + (SURE - (1 - SURE) / (DIGITS - 1)) * np.eye(DIGITS)
    styles = {"ce": ("s", figures.GREY, "dotted"), "ntl_mse": ("o", figures.VERMILION, "dashed")}
    for name, title in LOSSES.items():
        marker, colour, line = styles.get(name, ("D", figures.BLUE, "solid"))
        value = losses(sure, name)
        label = f"{title} (largest: {value.max():.2f})"
        ax.plot(value / value.max(), marker=marker, color=colour, linestyle=line, markersize=4, label=label)
    ax.axvline(LABEL, color="0.8", linewidth=1, zorder=0)
    ax.set_xticks(range(DIGITS))
    ax.set_xlabel(f"digit that {SURE:.0%} of the mass are on; the label is {LABEL}")
    ax.set_ylabel("loss / its largest")
    canvas.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return canvas


def heat_map() -> Canvas:
    """Each loss over the mass on 0 and the mass on 8, the rest on the label; its minima are marked."""
    canvas = _canvas(len(LOSSES))
    share = np.linspace(0, 1, 101)
    on_0, on_8 = np.meshgrid(share, share)
    inside = on_0 + on_8 <= 1 + 1e-9
    points = np.zeros((*on_0.shape, DIGITS))
    points[..., 0], points[..., 8] = on_0, on_8
    points[..., LABEL] = np.clip(1 - on_0 - on_8, 0, 1)
    points[~inside] = mass(d4=1)
    for ax, (name, title) in zip(canvas.axes, LOSSES.items(), strict=True):
        value = losses(points, name)
        shown = np.where(inside, value, np.nan)
        # Cross-entropy has no largest value: what lies above 5 is drawn alike.
        image = ax.pcolormesh(share, share, shown, cmap="cividis", vmin=0, vmax=5 if name == "ce" else None)
        image.set_rasterized(True)
        least = inside & (value < 1e-6)
        ax.plot(on_0[least], on_8[least], ".", color=figures.VERMILION, markersize=4, clip_on=False, label="loss 0")
        ax.set_aspect("equal")
        ax.set_title(title)
        ax.set_xlabel("mass on 0")
        canvas.colorbar(image, ax=ax, shrink=0.8)
    canvas.axes[0].set_ylabel("mass on 8")
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8)
    canvas.suptitle("Loss for the label 4; what is not on 0 or 8 is on 4", fontsize=11)
    return canvas


def _canvas(panels: int) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(5, 3.4) if panels == 1 else (3.3 * panels, 3.4), layout="constrained")
    canvas.subplots(1, panels)
    return canvas


TABLES = (
    Computed(
        title="The losses as functions of the prediction",
        make=sections,
        notes=(
            "Computed, without any run: ten digits, values 0 to 9, losses by `ntl.losses.functional` in float64. No "
            "mass at all is 1e-9 here, which is why cross-entropy is finite.",
            "Second table: the share of wrong predictions from which moving a hundredth of the mass to the label does "
            "not lower the loss. By NTL-MSE, MAE and Huber every prediction whose expected value is the label is as "
            "good as the right one; by NTL-WAS the way to the label always leads down.",
        ),
    ),
)
FIGURES = (figures.Computed(curve, "curve"), figures.Computed(heat_map, "heat_map"))
