"""What the losses cost in time and memory. `python -m experiments runtime [loss] [head] [growth] [step]` measures it.

Tables, figures and the verdict are made from the records of `experiments.benchmark` alone, one for each machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.analysis import figures as drawn
from experiments.analysis.claims import Outcome
from experiments.analysis.figures import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION
from experiments.analysis.metrics import margin as margin_of
from experiments.analysis.published import Claim
from experiments.analysis.rendering import decimal
from experiments.analysis.statistics import equivalence_p, paired
from experiments.analysis.table import Computed, Section
from experiments.benchmark.record import groups, load, ratios
from experiments.benchmark.settings import (
    CE,
    FUSED,
    LINEAR,
    NTLOSS,
    NTLOSS_DEFAULT,
    OUR_CE,
    OUR_NTL,
    PLAIN,
    REWEIGHED,
    SHARES,
    TRAINER,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def tables(results: Path) -> list[Computed]:
    """The tables of every machine with a record."""
    records = load(results)
    return [
        table
        for machine, record in records.items()
        for table in _tables_of("" if len(records) == 1 else machine, record)
    ]


def figures(results: Path) -> list[drawn.Computed]:
    """The figure of every machine with a record."""
    records = load(results)
    return [
        drawn.Computed(partial(draw, record), "" if len(records) == 1 else machine)
        for machine, record in records.items()
    ]


def spread(values: Sequence[float], digits: int) -> str:
    """Median, with the quartiles where there are enough rounds for them."""
    median = decimal(statistics.median(values), digits)
    if len(values) < 4:
        return median
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median} [{decimal(low, digits)}, {decimal(high, digits)}]"


TITLES = {
    "loss": "The loss alone, forward and backward, given logits",
    "head": "The head and the loss, forward and backward, given hidden states",
    "step": "A whole training step, from scratch (forward, backward, optimizer)",
    "growth": "Growth with the number of label tokens",
}


def sections(record: Mapping[str, Any]) -> list[Section]:
    """A section for each group of measurements."""
    found: list[Section] = []
    for part, title in TITLES.items():
        for rows in groups(record, part):
            first = rows[0]
            header = ["method", "ms", f"÷ {first['method']}", "MiB added", f"÷ {first['method']}, memory"]
            lines = []
            for row in rows:
                memory = row["memory_mib"]
                relative = memory / first["memory_mib"] if memory is not None and first["memory_mib"] else None
                lines.append(
                    [
                        row["method"],
                        spread([1000 * value for value in row["seconds"]], 1),
                        spread(ratios(row, first), 2),
                        "–" if memory is None else f"{memory:,.0f}",
                        "–" if relative is None else decimal(relative, 2),
                    ]
                )
            heading = (
                f"{title}: {first['vocabulary']}, {first['columns']:,} columns, {first['tokens']:,} tokens, "
                f"{first['numbers']:.0%} numbers, {first['dtype']}"
            )
            found.append((heading, header, lines))
    return found


# What is compared in brief: how it is called, part of the record, method, baseline, and what of them ("seconds" by
# ratios within a round, or "memory_mib").
HEADLINES = (
    ("loss alone: fused CE + NTL ÷ torch's CE", "loss", FUSED, CE, "seconds"),
    ("loss alone: fused CE + NTL ÷ (torch's CE + ntloss)", "loss", FUSED, NTLOSS, "seconds"),
    ("the same, reweighed ÷ (torch's CE + ntloss's default)", "loss", REWEIGHED, NTLOSS_DEFAULT, "seconds"),
    ("loss alone: fused CE + NTL ÷ torch's CE, memory added", "loss", FUSED, CE, "memory_mib"),
    ("with the head: linear CE + NTL ÷ CE, memory added", "growth", LINEAR, f"head + {CE}", "memory_mib"),
    ("training step: CE + NTL ÷ CE, both our default path", "step", OUR_NTL, OUR_CE, "seconds"),
    ("training step: CE + NTL, our default path ÷ CE, plain Trainer", "step", OUR_NTL, TRAINER, "seconds"),
)


def headline(record: Mapping[str, Any]) -> Section:
    """The ratios that matter, one row each, for the model or vocabulary that they were measured with."""
    header = ["ratio", "measured with", "median [quartiles]"]
    lines = []
    for title, part, method, baseline, what in HEADLINES:
        for rows in groups(record, part):
            by_method = {row["method"]: row for row in rows}
            if not {method, baseline} <= by_method.keys() or rows[0]["numbers"] != max(SHARES):
                continue
            one, other = by_method[method], by_method[baseline]
            if what == "seconds":
                ratio = spread(ratios(one, other), 2)
            elif one[what] is None or not other[what]:
                continue
            else:
                ratio = decimal(one[what] / other[what], 2)
            lines.append([title, f"{one['vocabulary']}, {one['tokens']:,} tokens", ratio])
    threads, dtype = record["environment"]["threads"], record["measurements"][0]["dtype"]
    return f"{threads} threads of a {record['device'].upper()}, {dtype}", header, lines


def _tables_of(name: str, record: Mapping[str, Any]) -> list[Computed]:
    """The table of one machine, in full and in brief; `name` distinguishes its files from those of other machines."""
    here = record["environment"]
    device = (here["gpus"] or [here["cpu"]])[0]
    notes = (
        f"Measured on {device}, {here['threads']} threads, torch {here['packages'].get('torch')}, ntloss "
        f"{here['ntloss']}; load average {record['load']['before']} before and {record['load']['after']} after. Times "
        "are medians over rounds, with quartiles; ratios are medians of the ratios within a round. Memory is the peak "
        "above what was there before, gradients included.",
        *(["A quick impression, with few tokens and rounds."] if record["quick"] else []),
        *record["notes"],
    )
    short = f"{name}_headline" if name else "headline"
    return [
        Computed("What the losses cost", lambda: sections(record), name, notes),
        Computed("What the losses cost, in brief", lambda: [headline(record)], short, notes),
    ]


def draw(record: Mapping[str, Any]) -> Canvas:
    """Ratios of the loss alone, and growth of time and memory with tokens."""
    from matplotlib.figure import Figure as Canvas

    looks = {
        CE: (GREY, "o"),
        PLAIN: (SKY, "s"),
        FUSED: (BLUE, "D"),
        NTLOSS: (ORANGE, "^"),
        NTLOSS_DEFAULT: (VERMILION, "v"),
        f"head + {CE}": ("black", "x"),
        LINEAR: (GREEN, "P"),
    }
    canvas = Canvas(figsize=(11, 4.2), layout="constrained")
    bars, times, memories = canvas.subplots(1, 3)
    shown = [rows for rows in groups(record, "loss") if rows[0]["numbers"] == max(SHARES)]
    names = [row["method"] for row in shown[0]] if shown else []
    for place, name in enumerate(names):
        for rows in shown:
            row = next((row for row in rows if row["method"] == name), None)
            if row is not None:
                offset = (shown.index(rows) - (len(shown) - 1) / 2) * 0.25
                colour = (BLUE, ORANGE, GREEN)[shown.index(rows) % 3]
                bars.barh(place + offset, statistics.median(ratios(row, rows[0])), 0.23, color=colour)
    for rows, colour in zip(shown, (BLUE, ORANGE, GREEN), strict=False):
        bars.barh([0], [0], color=colour, label=f"{rows[0]['vocabulary']} ({rows[0]['columns']:,})")
    bars.axvline(1, color=GREY, linewidth=1, linestyle="dashed")
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    bars.set_xlabel("time ÷ CE")
    bars.set_title("Loss alone, 60 % numbers")
    bars.legend(frameon=False, fontsize=7, loc="upper right")
    growing = [row for rows in groups(record, "growth") for row in rows]
    for name, (colour, marker) in looks.items():
        rows = sorted((row for row in growing if row["method"] == name), key=lambda row: row["tokens"])
        tokens, style = [row["tokens"] for row in rows], {"color": colour, "marker": marker, "markersize": 4}
        times.plot(tokens, [statistics.median(row["seconds"]) for row in rows], label=name, **style)
        measured = [row for row in rows if row["memory_mib"] is not None]
        memories.plot([row["tokens"] for row in measured], [row["memory_mib"] for row in measured], **style)
    for ax, label, title in (
        (times, "seconds", "Time of forward and backward"),
        (memories, "MiB added", "Peak memory"),
    ):
        ax.set(xlabel="label tokens", ylabel=label, title=f"{title}, T5 vocabulary")
        if not growing:  # that part was not measured, and nothing has no logarithm
            continue
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(ticks := sorted({row["tokens"] for row in growing}), [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
    canvas.legend(*times.get_legend_handles_labels(), loc="outside lower right", ncols=4, frameon=False, fontsize=7)
    return canvas


def judge(claim: Claim, results: Path) -> Outcome:
    """Whether a step with NTL takes longer than with CE by at most the metric's margin, both on our default path.

    The pairs are rounds in which both were timed, of every model that was measured on the first full record's machine.
    """
    command = "python -m experiments runtime"
    margin = margin_of(claim.metric)[1]
    for record in load(results).values():
        ratio: list[float] = []
        for rows in groups(record, "step"):
            by_method = {row["method"]: row for row in rows}
            if {OUR_CE, OUR_NTL} <= by_method.keys():
                ratio += ratios(by_method[OUR_NTL], by_method[OUR_CE])
        if not record["quick"] and 2 <= len(ratio) <= 20:
            one = [1.0] * len(ratio)
            effect = paired(ratio, one)
            p = equivalence_p(ratio, one, float("-inf"), margin)
            slower = effect.low is not None and effect.low > margin
            verdict = "equivalent" if p < 0.05 else "differs" if slower else "undecided"
            remark = f"step with NTL ÷ step with CE: {spread(ratio, 3)} over {len(ratio)} rounds"
            return Outcome(claim, verdict, effect.signed(-1), p=p, seeds=len(ratio), command=command, remark=remark)
    return Outcome(claim, command=command, remark="the training steps have not been measured in full")
