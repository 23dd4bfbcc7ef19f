"""What the losses cost: `python -m experiments runtime [loss] [head] [growth] [step]`.

The record `results/runtime/<machine>.json` holds every round that `costs` measured; table, figure and
verdict are made of the records alone.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.benchmark.costs import (
    CE,
    FUSED,
    LIGER,
    LINEAR,
    NTLOSS,
    NTLOSS_DEFAULT,
    OUR_CE,
    OUR_NTL,
    PARTS,
    PLAIN,
    REWEIGHED,
    SHARES,
    TRAINER,
    Plan,
    liger_loss,
    measure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.analysis.claims import Outcome
    from experiments.analysis.published import Claim
    from experiments.analysis.tables import Computed, Section

STEP_MARGIN = 0.01  # a step may take this much longer and still count as no overhead


# ── The record ──────────────────────────────────────────────────────────────────────────────────────────────────────


def run(plan: Plan, results: Path, say: Callable[[str], None] = print) -> Path:
    """Measure and write the record; returns its path. A quick one stands beside the full one, never in its place."""
    import torch

    from ntl.files import write_atomically
    from ntl.runs.record import code_state, environment, to_json

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = os.getloadavg()[0]
    start = time.perf_counter()
    measured = measure(plan, device, say)
    machine = environment()
    notes = []
    if liger_loss() is None:
        notes.append("Liger's fused linear cross-entropy needs its package, Triton and a GPU: not measured.")
    if not any(NTLOSS in row["method"] for row in measured):
        notes.append("The package ntloss is not installed: not measured.")
    record = {
        "schema": 1,
        "environment": machine | {"ntloss": _version("ntloss"), "liger_kernel": _version("liger-kernel")},
        "code": code_state(),
        "device": device,
        "quick": plan.quick,
        "seconds": round(time.perf_counter() - start, 1),
        "load": {"before": round(before, 2), "after": round(os.getloadavg()[0], 2)},
        "measurements": measured,
        "notes": notes,
    }
    name = (machine["gpus"] or [machine["cpu"]])[0]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{name} {machine['threads']} threads".lower()).strip("-")
    path = results / "runtime" / f"{slug}{'-quick' if plan.quick else ''}.json"
    if path.exists() and set(plan.parts) != set(PARTS):  # parts that were not measured again stay
        kept = [row for row in read(path)["measurements"] if row["part"] not in plan.parts]
        record["measurements"] = sorted(kept + measured, key=lambda row: PARTS.index(row["part"]))
    write_atomically(path, to_json(record))
    return path


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ── Table and figure ────────────────────────────────────────────────────────────────────────────────────────────────


def load(results: Path) -> dict[str, dict[str, Any]]:
    """The full records by machine; a quick one only where there is no full one."""
    paths = sorted((results / "runtime").glob("*.json"))
    full = [path for path in paths if not path.stem.endswith("-quick")]
    return {path.stem: read(path) for path in full or paths}


def read(path: Path) -> dict[str, Any]:
    """Read and check one machine's record.

    Raises:
        RecordError: it is damaged or incomplete.
    """
    from ntl.runs.record import RecordError, read_json

    try:
        record = read_json(path)
        found = problem(record)
    except RecordError as error:
        found = error.problem
    if found:
        raise RecordError(path, found, "remove it and measure again (python -m experiments runtime)")
    return record


NUMBER, OPTIONAL = (int, float), (int, float, type(None))
_FIELDS = {"schema": int, "environment": dict, "device": str, "quick": bool, "load": dict, "measurements": list,
           "notes": list}  # fmt: skip
_ENVIRONMENT = {"gpus": list, "cpu": str, "threads": (int, type(None)), "packages": dict, "ntloss": (str, type(None))}
_ROW = {"part": str, "method": str, "vocabulary": str, "dtype": str, "tokens": int, "columns": int, "numbers": NUMBER,
        "seconds": list, "memory_mib": OPTIONAL}  # fmt: skip


def problem(record: Any) -> str | None:
    """Say what is wrong with the content of a record of costs, or None."""
    from ntl.runs.record import is_finite_number

    if found := _mismatch(record, _FIELDS, "it"):
        return found
    if found := _mismatch(record["environment"], _ENVIRONMENT, "environment"):
        return found
    if found := _mismatch(record["load"], {"before": NUMBER, "after": NUMBER}, "load"):
        return found
    if not all(isinstance(text, str) for text in (*record["notes"], *record["environment"]["gpus"])):
        return "notes and environment.gpus hold something that is no text"
    for number, row in enumerate(record["measurements"]):
        if found := _mismatch(row, _ROW, f"measurements[{number}]"):
            return found
        if row["part"] not in PARTS:
            return f"measurements[{number}].part is none of {', '.join(PARTS)}"
        times = row["seconds"]
        if not times or not all(is_finite_number(time) and time > 0 for time in times):
            return f"measurements[{number}].seconds are {times!r:.200}, and positive numbers are expected"
    for part in PARTS:
        for rows in groups(record, part):
            if len({len(row["seconds"]) for row in rows}) > 1:
                return f"measurements of {part} that were made in turn differ in their number of rounds"
    return None


def _mismatch(value: Any, kinds: Mapping[str, Any], where: str) -> str | None:
    """Say which key of a mapping is missing or of another kind (a number must be finite and not negative), or None."""
    from ntl.runs.record import is_finite_number

    if not isinstance(value, dict):
        return f"{where} holds a {type(value).__name__} where an object is expected"
    for name, kind in kinds.items():
        found = value.get(name)
        if name not in value or not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            return f"{where} holds no {name}" if name not in value else f"{where}: {name} is a {type(found).__name__}"
        if isinstance(found, NUMBER) and kind is not bool and not (is_finite_number(found) and found >= 0):
            return f"{where}: {name} is no finite number of at least 0"
    return None


def groups(record: Mapping[str, Any], part: str) -> list[list[dict[str, Any]]]:
    """The measurements of one part that were made in turn, baseline first."""
    found: dict[tuple, list[dict[str, Any]]] = {}
    for row in record["measurements"]:
        if row["part"] == part:
            head = row["method"].startswith("head + ") or row["method"] in (LINEAR, LIGER)
            key = (row["vocabulary"], row["tokens"], row["numbers"], row["dtype"], head)
            found.setdefault(key, []).append(row)
    return list(found.values())


def ratios(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[float]:
    """Time by round, divided by the baseline's in the same round."""
    return [one / other for one, other in zip(row["seconds"], baseline["seconds"], strict=True)]


def spread(values: Sequence[float], digits: int) -> str:
    """Median, with the quartiles where there are enough rounds for them."""
    median = f"{statistics.median(values):.{digits}f}"
    if len(values) < 4:
        return median
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median} [{low:.{digits}f}, {high:.{digits}f}]"


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
                        "–" if relative is None else f"{relative:.2f}",
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
                ratio = f"{one[what] / other[what]:.2f}"
            lines.append([title, f"{one['vocabulary']}, {one['tokens']:,} tokens", ratio])
    threads, dtype = record["environment"]["threads"], record["measurements"][0]["dtype"]
    return f"{threads} threads of a {record['device'].upper()}, {dtype}", header, lines


def _tables(name: str, record: Mapping[str, Any]) -> list[Computed]:
    """The table of one machine, in full and in brief; `name` parts its files from those of other machines."""
    from experiments.analysis.tables import Computed

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


def write_tables(results: Path) -> list[Path]:
    """Write the table of every machine's record; returns the paths, none without a record."""
    from experiments.analysis import tables

    records = load(results)
    only = len(records) == 1
    made = [made for machine, record in records.items() for made in _tables("" if only else machine, record)]
    return [path for one in made for path in tables.write(one, "runtime", {}, results / "tables")]


def write_figures(results: Path) -> list[Path]:
    """Write the figure of every machine's record; returns the paths."""
    records = load(results)
    folder = results / "figures"
    return [
        path
        for machine, record in records.items()
        for path in _save(draw(record), folder / ("runtime" if len(records) == 1 else f"runtime_{machine}"))
    ]


def draw(record: Mapping[str, Any]) -> Figure:
    """Ratios of the loss alone, and growth of time and memory with tokens."""
    import matplotlib
    from matplotlib.figure import Figure

    from experiments.analysis.figures import BLUE, GREEN, GREY, ORANGE, SKY, STYLE, VERMILION

    looks = {
        CE: (GREY, "o"),
        PLAIN: (SKY, "s"),
        FUSED: (BLUE, "D"),
        NTLOSS: (ORANGE, "^"),
        NTLOSS_DEFAULT: (VERMILION, "v"),
        f"head + {CE}": ("black", "x"),
        LINEAR: (GREEN, "P"),
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        canvas = Figure(figsize=(11, 4.2), layout="constrained")
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
            ax.set(xscale="log", yscale="log", xlabel="label tokens", ylabel=label, title=f"{title}, T5 vocabulary")
            ax.set_xticks(ticks := sorted({row["tokens"] for row in growing}), [f"{tick:,}" for tick in ticks])
            ax.minorticks_off()
        canvas.legend(*times.get_legend_handles_labels(), loc="outside lower right", ncols=4, frameon=False, fontsize=7)
    return canvas


def _save(canvas: Figure, path: Path) -> list[Path]:
    import matplotlib

    from experiments.analysis.figures import METADATA, STYLE

    paths = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        for suffix, metadata in METADATA.items():
            paths.append(path.with_name(f"{path.name}.{suffix}"))
            canvas.savefig(paths[-1], metadata=metadata)
    return paths


# ── The verdict ─────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(claim: Claim, results: Path) -> Outcome:
    """Whether a training step with NTL takes at most a hundredth longer than with CE, both on our default path.

    The pairs are rounds in which both were timed, of every model that was measured on the first full record's machine.
    """
    from experiments.analysis.claims import Outcome
    from experiments.analysis.statistics import equivalence_p, paired

    command = "python -m experiments runtime"
    for record in load(results).values():
        ratio: list[float] = []
        for rows in groups(record, "step"):
            by_method = {row["method"]: row for row in rows}
            if {OUR_CE, OUR_NTL} <= by_method.keys():
                ratio += ratios(by_method[OUR_NTL], by_method[OUR_CE])
        if not record["quick"] and 2 <= len(ratio) <= 20:
            one = [1.0] * len(ratio)
            effect = paired(ratio, one)
            p = equivalence_p(ratio, one, float("-inf"), STEP_MARGIN)
            slower = effect.low is not None and effect.low > STEP_MARGIN
            verdict = "equivalent" if p < 0.05 else "differs" if slower else "undecided"
            remark = f"step with NTL ÷ step with CE: {spread(ratio, 3)} over {len(ratio)} rounds"
            return Outcome(claim, verdict, effect.signed(-1), p=p, seeds=len(ratio), command=command, remark=remark)
    return Outcome(claim, command=command, remark="the training steps have not been measured in full")
