"""Figures as declarations: the data frame of a table, drawn.

A panel for each split and metric, a row for each arm: every seed a dot, the mean with its standard deviation, the
published value as a diamond, the constants and the untrained model as lines where they come near the arms. Colours
are told apart by colour-blind readers (Okabe and Ito), and by markers and line styles in greyscale. Making a figure
again changes no byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from experiments.analysis.frame import frame
from experiments.analysis.metrics import direction, title
from experiments.analysis.records import ArmRuns, from_where
from experiments.analysis.table import CONSTANTS, SPLITS, Table

BLUE, ORANGE, SKY, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#666666"
LINES = {
    "untrained": (GREY, (0, (1, 1))),
    "mean": (ORANGE, "dashed"),
    "median": (GREEN, "dashdot"),
    "most_frequent": (VERMILION, (0, (5, 1, 1, 1, 1, 1))),
}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "ntl",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "savefig.dpi": 150,
}
# Neither the time nor the program's version: the same numbers are the same file.
METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


@dataclass(frozen=True)
class Figure:
    """One figure of an experiment: the metrics of a table that it draws (all but the medians by default)."""

    table: Table
    metrics: tuple[str, ...] = ()
    name: str = ""  # suffix of the file; the table's by default
    log: tuple[str, ...] = ()  # metrics on a logarithmic axis

    def restricted(self, arms: Collection[str]) -> Figure | None:
        """The same figure of these arms alone; see `Table.restricted`."""
        table = self.table.restricted(arms)
        return None if table is None else replace(self, table=table)

    def file_name(self, experiment: str) -> str:
        suffix = self.name or self.table.name
        return f"{experiment}_{suffix}" if suffix else experiment


@dataclass(frozen=True)
class Computed:
    """A figure that needs no run: `draw` makes it."""

    draw: Callable[[], Canvas]
    name: str = ""

    def file_name(self, experiment: str) -> str:
        return f"{experiment}_{self.name}" if self.name else experiment


def write(figure: Figure | Computed, experiment: str, arms: Mapping[str, ArmRuns], folder: Path) -> list[Path]:
    """Write `<name>.png` and `.svg` of a figure into `folder`. Returns the paths."""
    numbers = None if isinstance(figure, Computed) else frame(figure.table, experiment, arms)
    paths = []
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        own = any(not record.published for runs in arms.values() for record in runs.records)
        label = f"\n({from_where(arms)})" if own else ""
        canvas = figure.draw() if numbers is None else draw(figure, numbers, experiment, label)
        canvas.draw_without_rendering()  # lays it out
        canvas.set_layout_engine("none")  # once for both files
        for suffix, metadata in METADATA.items():
            path = Path(folder) / f"{figure.file_name(experiment)}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            canvas.savefig(path, metadata=metadata)
            paths.append(path)
    return paths


def draw(figure: Figure, numbers: pd.DataFrame, experiment: str, label: str = "") -> Canvas:
    """Draw the frame of the figure's table (`frame`): one column of panels for each split and metric.

    Args:
        label: follows the title, for records that are not published.
    """
    numbers = numbers[numbers["group"] == "all"]
    arms = list(dict.fromkeys(numbers.loc[numbers["kind"] == "arm", "row"]))
    metrics = figure.metrics or figure.table.metrics
    panels = [(split, metric) for split in figure.table.splits for metric in metrics]
    size = (2.2 + 2.6 * len(panels), 1.9 + 0.26 * len(arms))
    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    lines: set[str] = set()
    for ax, (split, metric) in zip(axes, panels, strict=True):
        lines |= _panel(ax, numbers[(numbers["split"] == split) & (numbers["metric"] == metric)], arms)
        ax.set_title(SPLITS.get(split, split))
        ax.set_xlabel(title(metric))
        if metric in figure.log:
            ax.set_xscale("log")
    axes[0].set_yticks(range(len(arms)), arms)
    axes[0].set_ylim(len(arms) - 0.5, -0.5)
    canvas.suptitle(figure.table.heading(experiment) + label, fontsize=11)
    canvas.legend(handles=_legend(numbers, lines), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return canvas


def _panel(ax: Axes, cells: pd.DataFrame, arms: list[str]) -> set[str]:
    """Draw one split and metric; returns which of `LINES` can be seen in it."""
    for cell in cells.itertuples(index=False):
        if cell.kind in ("constant", "untrained"):
            if pd.notna(cell.mean):
                colour, style = LINES[cell.row]
                ax.axvline(cell.mean, color=colour, linestyle=style, linewidth=1, zorder=1)
            continue
        if cell.kind != "arm":
            continue
        y = arms.index(cell.row)
        if pd.notna(cell.mean):
            seeds, error = list(cell.values.values()), cell.sd if pd.notna(cell.sd) else None
            ax.plot(seeds, [y + 0.25] * len(seeds), "o", color=SKY, markersize=4, alpha=0.8, zorder=2)
            ax.errorbar(cell.mean, y, xerr=error, fmt="|", color=BLUE, markersize=11, capsize=2.5, zorder=4)
        else:
            where = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
            ax.annotate("missing", (0.5, y), fontsize=7, color=GREY, **where)
        if pd.notna(cell.paper):
            ax.plot(cell.paper, y, "D", markerfacecolor="white", markeredgecolor="black", markersize=4.5, zorder=3)
    _limit(ax, cells)
    ax.grid(axis="y", color="0.92", linewidth=0.8)
    ax.set_axisbelow(True)
    low, high = ax.get_xlim()
    drawn = cells[cells["row"].isin(LINES) & cells["mean"].notna()]
    return {cell.row for cell in drawn.itertuples(index=False) if low <= cell.mean <= high}


def _limit(ax: Axes, cells: pd.DataFrame) -> None:
    """Show the arms and the best constant: the untrained model's error would leave no room to tell the arms apart."""
    arms = cells[cells["kind"] == "arm"]
    spread = arms["sd"].astype(float).fillna(0)
    shown = [value for seeds in arms["values"] for value in seeds.values()] + list(arms["paper"].dropna())
    shown += list((arms["mean"] - spread).dropna()) + list((arms["mean"] + spread).dropna())
    if not shown:
        return
    constants = cells.loc[cells["kind"] == "constant", "mean"].dropna()
    if len(constants):
        shown.append(min(constants) if direction(cells["metric"].iloc[0]) < 0 else max(constants))
    margin = 0.05 * (max(shown) - min(shown)) or 0.05
    ax.set_xlim(min(shown) - margin, max(shown) + margin)


def _legend(numbers: pd.DataFrame, lines: set[str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=SKY, marker="o", linestyle="none", markersize=4, label="one seed"),
        Line2D([], [], color=BLUE, marker="|", markersize=9, linewidth=1.3, label="mean ± sd over seeds"),
    ]
    if numbers["paper"].notna().any():
        style = {"marker": "D", "markerfacecolor": "white", "linestyle": "none"}
        handles.append(Line2D([], [], color="black", label="paper, at its own scale", **style))
    for row, (colour, style) in LINES.items():
        if row in lines:
            handles.append(Line2D([], [], color=colour, linestyle=style, label=CONSTANTS.get(row, row)))
    return handles
