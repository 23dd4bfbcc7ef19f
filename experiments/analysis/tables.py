"""Tables as declarations: what to show is data, how it is computed and rendered stands here once.

`frame` gathers all numbers of a table in one data frame; Markdown, CSV, LaTeX and the figure are renderings of it.
Nothing in a rendering depends on when or where it was made, so making it again changes no byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments.analysis import published as paper
from experiments.analysis.metrics import MEDIANS, title
from experiments.analysis.records import TRIVIAL, UNTRAINED, ArmRuns, Conflict, Record, command, disputed, from_where
from experiments.analysis.statistics import NOTHING, Paired, common, paired, summarise

EACH = ("each module",)
SPLITS = {"interpolate": "Interpolation", "extrapolate": "Extrapolation", "test": "Test", "validation": "Validation"}
CONSTANTS = {"mean": "constant: mean", "median": "constant: median", "most_frequent": "constant: most frequent"}
COLUMNS = [
    "row", "kind", "split", "group", "metric", "mean", "sd", "n", "seeds", "failed",
    "baseline", "difference", "ci_low", "ci_high", "p", "sign_flip_p", "pairs",
    "paper", "paper_sd", "paper_model", "paper_source", "values",
]  # fmt: skip


Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Comparison:
    """A paired comparison beside those to the table's baseline; `why` says what it tells."""

    treatment: str
    baseline: str
    why: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.treatment, self.baseline)

    def sides(self, values: Callable[[str], Values]) -> tuple[Values, Values]:
        """What is compared, from the values of each arm."""
        return values(self.treatment), values(self.baseline)


@dataclass(frozen=True)
class Interaction:
    """Whether one comparison comes out otherwise than another: the difference of their differences, seed by seed."""

    first: Comparison
    second: Comparison
    why: str = ""

    @property
    def treatment(self) -> str:
        return f"({self.first.treatment} − {self.first.baseline})"

    @property
    def baseline(self) -> str:
        return f"({self.second.treatment} − {self.second.baseline})"

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.first.arms, *self.second.arms)

    def sides(self, values: Callable[[str], Values]) -> tuple[Values, Values]:
        """The differences of both comparisons."""
        return _differences(*self.first.sides(values)), _differences(*self.second.sides(values))


# A heading, the headers of its columns, and the rows.
Section = tuple[str, list[str], list[list[str]]]


@dataclass(frozen=True)
class Computed:
    """A table that needs no run: `make` computes its sections when the table is written."""

    title: str
    make: Callable[[], Sequence[Section]]
    name: str = ""
    notes: tuple[str, ...] = ()

    def file_name(self, experiment: str) -> str:
        return f"{experiment}_{self.name}" if self.name else experiment


@dataclass(frozen=True)
class Table:
    """One table of an experiment: rows are its arms in the yaml's order, then the untrained model and the constants."""

    title: str
    splits: tuple[str, ...]
    metrics: tuple[str, ...]
    baseline: str  # the arm that every other is compared with
    name: str = ""  # suffix of the file, where an experiment has several tables
    arms: tuple[str, ...] | None = None  # None: all of the experiment
    groups: tuple[str, ...] = ("all",)  # or EACH: one section for each module that was scored
    comparisons: tuple[Comparison | Interaction, ...] = ()
    paper_setting: str = ""  # the published runs in one sentence
    notes: tuple[str, ...] = ()

    def file_name(self, experiment: str) -> str:
        return f"{experiment}_{self.name}" if self.name else experiment

    def heading(self, experiment: str) -> str:
        """The title, with the scale where it is not that of two CPU cores."""
        return f"{self.title} ({experiment})" if "/" in experiment else self.title

    def shown_metrics(self) -> tuple[str, ...]:
        """The metrics, each followed by the median that belongs beside it."""
        names: list[str] = []
        for name in self.metrics:
            names += [name, MEDIANS[name]] if name in MEDIANS else [name]
        return tuple(dict.fromkeys(names))


def frame(table: Table, experiment: str, arms: Mapping[str, ArmRuns]) -> pd.DataFrame:
    """Gather a table's numbers: one line per row, split, group and metric, columns `COLUMNS`.

    Raises:
        Conflict: the records of the table's arms were not computed on the same data.
        ValueError: the table names an arm that the experiment does not have.
    """
    arms = _chosen(table, experiment, arms)
    same_data(arms.values())
    records = [record for runs in arms.values() for record in runs.finished.values()]
    reference = arms[table.baseline] if arms[table.baseline].finished else _first_with_runs(arms)
    lines = []
    for split in table.splits:
        groups = sorted({g for r in records for g in r.groups(split)}) if table.groups == EACH else table.groups
        for group in groups:
            for name in table.shown_metrics():
                at = {"split": split, "group": group, "metric": name}
                base = arms[table.baseline].values(split, name, group)
                for arm, runs in arms.items():
                    values = runs.values(split, name, group)
                    compared = NOTHING if arm == table.baseline else _compare(values, base)
                    lines.append(
                        {"row": arm, "kind": "arm", **at, **_cell(values), **_counts(runs)}
                        | ({"baseline": table.baseline, **_difference(compared)} if arm != table.baseline else {})
                        | _published(experiment, arm, split, name, group)
                    )
                untrained = reference.values(split, name, group, UNTRAINED) if reference else {}
                lines.append({"row": UNTRAINED, "kind": "untrained", **at, **_cell(untrained)})
                for state in TRIVIAL:
                    constant = trivial_value(records, state, split, name, group)
                    published = _published(experiment, state, split, name, group)
                    lines.append({"row": state, "kind": "constant", **at, "mean": constant, **published})
                for comparison in table.comparisons:
                    compared = _compare(*comparison.sides(lambda arm, at=(split, name, group): arms[arm].values(*at)))
                    both = {"row": comparison.treatment, "baseline": comparison.baseline, "kind": "comparison"}
                    seeds = len(arms[comparison.arms[0]].seeds)
                    lines.append({**both, **at, "seeds": seeds, **_difference(compared)})
    columns = pd.DataFrame(lines, columns=COLUMNS)
    whole = ["n", "seeds", "failed", "pairs"]
    return columns.astype(dict.fromkeys(whole, "Int64"))


def same_data(arms: Iterable[ArmRuns]) -> None:
    """Raise a Conflict where finished records were computed on different data: they cannot be compared."""
    first: Record | None = None
    for runs in arms:
        for record in runs.finished.values():
            first = first or record
            if record.data != first.data:
                raise Conflict(
                    f"got records on different data: {first.path.parent} and {record.path.parent}; "
                    "expected all arms of a comparison on the same; prepare the data from one source and run one again"
                )


def write(table: Table | Computed, experiment: str, arms: Mapping[str, ArmRuns], folder: Path) -> list[Path]:
    """Write `<name>.md`, `.csv` and `.tex` of a table into `folder`, from one data frame. Returns the paths."""
    if isinstance(table, Computed):
        made = table.make()
        lines = (f"Made by `python -m experiments tables {experiment}`.", *table.notes)
        renderings = {
            "md": _markdown(table.title, made, lines),
            "csv": _csv(made),
            "tex": _latex(table.title, made, lines),
        }
    else:
        numbers = frame(table, experiment, arms)
        arms = _chosen(table, experiment, arms)
        renderings = {
            "md": to_markdown(table, experiment, numbers, arms),
            "csv": to_csv(numbers),
            "tex": to_latex(table, experiment, numbers, arms),
        }
    paths = []
    for suffix, text in renderings.items():
        path = Path(folder) / f"{table.file_name(experiment)}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def to_csv(numbers: pd.DataFrame) -> str:
    """All numbers of the frame, to six digits: the tidy form for other programs; `values` reads `seed=value;…`."""
    flat = numbers.copy()
    flat["values"] = [
        ";".join(f"{seed}={value:.6g}" for seed, value in cell.items()) if isinstance(cell, dict) else ""
        for cell in flat["values"]
    ]
    return flat.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def to_markdown(table: Table, experiment: str, numbers: pd.DataFrame, arms: Mapping[str, ArmRuns]) -> str:
    """The table for readers: one section for each split, a row per arm, the notes below."""
    return _markdown(table.heading(experiment), sections(table, numbers), notes(table, experiment, numbers, arms))


def _markdown(title: str, found: Iterable[Section], lines: Iterable[str]) -> str:
    parts = [f"# {title}"]
    for heading, headers, rows in found:
        align = ["left"] * 2 + ["right"] * (len(headers) - 2)
        body = tabulate(rows, headers, tablefmt="pipe", colalign=align[: len(headers)], disable_numparse=True)
        parts += [f"## {heading}", body]
    parts += ["## Notes", "\n".join(f"* {note}" for note in lines)]
    return "\n\n".join(parts) + "\n"


def _csv(found: Iterable[Section]) -> str:
    """Sections one below the other, each with its heading as first column."""
    tables = [pd.DataFrame(rows, columns=headers).assign(section=heading) for heading, headers, rows in found]
    return pd.concat(tables).set_index("section").to_csv(lineterminator="\n")


def to_latex(table: Table, experiment: str, numbers: pd.DataFrame, arms: Mapping[str, ArmRuns]) -> str:
    """The same for LaTeX (booktabs): a tabular for each section, to go in a table environment; notes as comments."""
    return _latex(table.heading(experiment), sections(table, numbers), notes(table, experiment, numbers, arms))


def _latex(title: str, found: Iterable[Section], lines: Iterable[str]) -> str:
    parts = ["\n".join(f"% {line}" for line in (title, *lines))]
    for heading, headers, rows in found:
        align = ["left"] * 2 + ["right"] * (len(headers) - 2)
        body = tabulate(rows, headers, tablefmt="latex_booktabs", colalign=align[: len(headers)], disable_numparse=True)
        parts.append(f"% {heading}\n{body.translate(_LATEX)}")
    return "\n\n".join(parts) + "\n"


def sections(table: Table, numbers: pd.DataFrame) -> list[Section]:
    """The rendered cells: (heading, headers, rows) for each split and group, then the further comparisons."""
    found = []
    main = numbers[numbers["kind"] != "comparison"]
    for (split, group), part in main.groupby(["split", "group"], sort=False):
        headers, columns = ["arm", "seeds"], [list(dict.fromkeys(part["row"])), _seeds_column(part)]
        for name in table.shown_metrics():
            cells = part[part["metric"] == name]
            headers += [title(name), f"Δ {table.baseline} [95 %]"]
            columns += [[_mean_text(c) for c in _lines(cells)], [_difference_text(c) for c in _lines(cells)]]
            if cells["paper"].notna().any():
                headers.append("paper")
                columns.append([_paper_text(c) for c in _lines(cells)])
        columns[0] = [CONSTANTS.get(row, row) for row in columns[0]]
        heading = SPLITS.get(split, split) + ("" if group == "all" else f": {group}")
        found.append((heading, headers, [list(row) for row in zip(*columns, strict=True)]))
    extra = numbers[numbers["kind"] == "comparison"]
    if not extra.empty:
        found.append(("Further comparisons", *_comparisons(table, extra)))
    return found


def _comparisons(table: Table, extra: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """A row for each comparison (and group), a column for each split and metric."""
    places = list(extra[["split", "metric"]].drop_duplicates().itertuples(index=False, name=None))
    headers = ["comparison", "what differs"] + [f"{SPLITS.get(s, s)}: Δ {title(m)} [95 %]" for s, m in places]
    rows = []
    for one in table.comparisons:
        lines = extra[(extra["row"] == one.treatment) & (extra["baseline"] == one.baseline)]
        for group, part in lines.groupby("group", sort=False):
            texts = {(c.split, c.metric): _difference_text(c) for c in _lines(part)}
            name = f"{one.treatment} − {one.baseline}" + ("" if group == "all" else f": {group}")
            rows.append([name, one.why, *(texts.get(place, "–") for place in places)])
    return headers, rows


def notes(table: Table, experiment: str, numbers: pd.DataFrame, arms: Mapping[str, ArmRuns]) -> list[str]:
    """What a reader needs to know under the table, and what is not yet there."""
    seeds = next(iter(arms.values())).seeds
    found = [
        f"Made by `python -m experiments tables {experiment}` from the records of `experiment={experiment}` "
        f"({from_where(arms)})." + _setting(arms),
        f"Cells: mean ± sample standard deviation over the seeds ({', '.join(map(str, seeds))}); ↑ higher is better, "
        "↓ lower is better. The CSV file holds every seed's value.",
        f"Δ {table.baseline}: mean paired difference, arm − `{table.baseline}` on the seeds that both have finished, "
        "with its paired-t 95 % interval (not corrected for the number of comparisons; the claims are).",
        f"untrained: the model of `{table.baseline}` before training. Constants: each question answered with the mean, "
        "the median or the most frequent answer of the training split; an arm that does not beat them has learnt "
        "nothing that the metric can see.",
    ]
    cited = numbers[numbers["paper"].notna()]
    if not cited.empty:
        models = ", ".join(sorted({m for m in cited["paper_model"] if m and m != "constant"}))
        sources = "; ".join(sorted(set(cited["paper_source"])))
        setting = "; ".join(filter(None, (models, table.paper_setting)))
        found.append(
            f"paper: the published value at the paper's own scale ({setting}). Source: {sources}; see `results/paper/`."
            " Compare the differences between arms, not the levels."
        )
    found += table.notes
    if ids := disputed(arms):
        found.append(f"The outputs hold other results of these runs; the published ones count: {', '.join(ids)}.")
    found += gaps(experiment, arms)
    return found


def gaps(experiment: str, arms: Mapping[str, ArmRuns]) -> list[str]:
    """Sentences on what is missing, failed or outdated, with the command that would do it."""
    found = []
    missing = {arm: runs for arm, runs in arms.items() if runs.missing}
    if missing:
        total = sum(len(runs.missing) for runs in missing.values())
        chosen = None if len(missing) == len(arms) else missing
        found.append(f"Missing: {total} runs of {_names(missing)}. To run them: `{command(experiment, chosen)}`")
    for arm, runs in arms.items():
        for seed, record in runs.failed.items():
            found.append(
                f"Failed: `{arm}`, seed {seed}: {record.reason}. To try again: "
                f"`{command(experiment, {arm: runs}, retry=True)} seed={seed}`"
            )
        if runs.outdated:
            version = sorted({record.algorithm_version for record in runs.outdated.values()})
            found.append(
                f"Outdated: `{arm}`, seeds {', '.join(map(str, runs.outdated))}: computed by algorithm version "
                f"{', '.join(map(str, version))}, not counted."
            )
    return found


def number(value: float | None, sign: bool = False) -> str:
    """A number in print: three decimals for small ones, fewer for large ones, a true minus sign, `–` for none."""
    return "–" if value is None or pd.isna(value) else _text(value, abs(value), sign)


def interval(compared: Paired) -> str:
    """A difference with its interval in print, all three with the same places."""
    if compared.low is None or compared.high is None:
        return number(compared.difference, sign=True)
    if compared.difference == compared.low == compared.high == 0:
        return "exactly 0"
    size = max(abs(compared.low), abs(compared.high))
    text, low, high = (_text(x, size, sign=True) for x in (compared.difference, compared.low, compared.high))
    return f"{text} [{low}, {high}]"


def probability(p: float | None) -> str:
    """A p-value in print."""
    if p is None or pd.isna(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3g}"


def _text(value: float, size: float, sign: bool = False) -> str:
    """Print `value` as is fit for numbers of magnitude `size`, so that a mean and its spread get the same places."""
    plus = "+" if sign else ""
    if size >= 1e5:
        text = f"{value:{plus}.2e}"
    else:
        places = 3 if size < 10 else 2 if size < 100 else 1
        text = f"{round(value, places) + 0.0:{plus}.{places}f}"  # + 0.0: no minus before a zero
    return text.replace("-", "−")


def _mean_text(cell: Any) -> str:
    if pd.isna(cell.mean):
        return "missing" if cell.kind == "arm" and cell.n == 0 else "–"  # –: undefined in every run, or not scored
    text = number(cell.mean)
    if pd.notna(cell.sd):
        text += f" ± {_text(cell.sd, abs(cell.mean))}"
    if cell.kind == "arm" and len(cell.values) < cell.n:
        text += f" (n = {len(cell.values)})"  # undefined in some of the finished runs
    return text


def _difference_text(cell: Any) -> str:
    difference, low, high = (None if pd.isna(x) else x for x in (cell.difference, cell.ci_low, cell.ci_high))
    text = interval(Paired(difference, low, high, None, None, 0))
    short = difference is not None and cell.pairs < cell.seeds
    return f"{text} (n = {cell.pairs})" if short else text


def _paper_text(cell: Any) -> str:
    if pd.isna(cell.paper):
        return "–"
    decimals = 2 if abs(cell.paper - round(cell.paper, 2)) < 1e-9 else 3  # as many as were published
    spread = f" ± {cell.paper_sd:.{decimals}f}" if pd.notna(cell.paper_sd) else ""
    return f"{cell.paper:.{decimals}f}{spread}"


def _seeds_column(part: pd.DataFrame) -> list[str]:
    rows = part.drop_duplicates("row")
    texts = []
    for cell in _lines(rows):
        if cell.kind != "arm":
            texts.append("–" if cell.kind == "constant" or pd.isna(cell.n) else str(cell.n))
            continue
        text = str(cell.n) if cell.n == cell.seeds else f"{cell.n} of {cell.seeds}"
        texts.append(text + (f", {cell.failed} failed" if cell.failed else ""))
    return texts


def _lines(cells: pd.DataFrame) -> list[Any]:
    return list(cells.itertuples(index=False))


def _chosen(table: Table, experiment: str, arms: Mapping[str, ArmRuns]) -> dict[str, ArmRuns]:
    named = [table.baseline, *(table.arms or ()), *(a for c in table.comparisons for a in c.arms)]
    unknown = sorted(set(named) - set(arms))
    if unknown:
        raise ValueError(
            f"the table of '{experiment}' names {', '.join(unknown)}; "
            f"conf/experiment/{experiment}.yaml has the arms {', '.join(arms)}"
        )
    return {arm: runs for arm, runs in arms.items() if table.arms is None or arm in table.arms}


def _first_with_runs(arms: Mapping[str, ArmRuns]) -> ArmRuns | None:
    return next((runs for runs in arms.values() if runs.finished), None)


def _cell(values: Mapping[int, float]) -> dict[str, Any]:
    summary = summarise(list(values.values()))
    return {"mean": summary.mean, "sd": summary.sd, "n": summary.n, "values": dict(values)}


def _counts(runs: ArmRuns) -> dict[str, int]:
    return {"n": len(runs.finished), "seeds": len(runs.seeds), "failed": len(runs.failed)}


def _compare(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> Paired:
    _, ours, theirs = common(treatment, baseline)
    return paired(ours, theirs)


def _differences(treatment: Values, baseline: Values) -> dict[int, float]:
    """Treatment − baseline on the seeds that both have."""
    return {seed: treatment[seed] - baseline[seed] for seed in treatment if seed in baseline}


def _difference(comparison: Paired) -> dict[str, Any]:
    return {
        "difference": comparison.difference,
        "ci_low": comparison.low,
        "ci_high": comparison.high,
        "p": comparison.p,
        "sign_flip_p": comparison.sign_flip_p,
        "pairs": comparison.n,
    }


def trivial_value(records: Sequence[Record], state: str, split: str, name: str, group: str) -> float | None:
    """A trivial predictor's value: the same in every record on the same data."""
    values = {record.value(state, split, name, group) for record in records} - {None}
    if not values:
        return None
    if max(values) - min(values) > 1e-9 * max(1.0, abs(max(values))):
        raise Conflict(
            f"got {len(values)} values of {name} on {split} for the constant '{state}', expected one from records on "
            f"the same data: {', '.join(sorted({r.path.parent.name for r in records}))}; were they scored on the same "
            "questions (eval.examples)?"
        )
    return min(values)


def _published(experiment: str, arm: str, split: str, name: str, group: str) -> dict[str, Any]:
    found = paper.published(experiment, arm, split, name, group)
    if found is None:
        return {}
    return {
        "paper": found.value,
        "paper_sd": found.sd,
        "paper_model": found.model,
        "paper_source": found.source,
    }


def _setting(arms: Mapping[str, ArmRuns]) -> str:
    """What was trained, from the first record at hand."""
    runs = _first_with_runs(arms)
    if runs is None:
        return ""
    record = next(iter(runs.finished.values())).content
    model, train = record["config"].get("model", {}), record["config"].get("train", {})
    parameters = (record.get("model") or {}).get("parameters")
    size = f" ({parameters / 1e6:.2f} M parameters)" if parameters else ""
    steps = f", {train['steps']:,} steps of {train['batch_size']}" if {"steps", "batch_size"} <= set(train) else ""
    return f" Ours: `{model.get('name')}`{size} on `{record['config'].get('dataset', {}).get('name')}`{steps}."


def _names(arms: Iterable[str]) -> str:
    return ", ".join(f"`{arm}`" for arm in arms)


# tabulate escapes LaTeX's own characters; these are what it leaves.
_LATEX = str.maketrans(
    {
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "Δ": r"$\Delta$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "×": r"$\times$",
        "λ": r"$\lambda$",
        "σ": r"$\sigma$",
        "ρ": r"$\rho$",
        "²": "$^2$",
    }
)
