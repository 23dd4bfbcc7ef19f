"""Tables in print: Markdown, CSV and LaTeX from one data frame, with the notes that belong below.

A rendering does not depend on when or where it was made, so writing it again changes no byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from experiments.analysis.frame import first_with_runs, frame
from experiments.analysis.metrics import describe, title
from experiments.analysis.records import CEILING, ArmRuns, command, disputed, from_where
from experiments.analysis.statistics import Paired
from experiments.analysis.table import CONSTANTS, SPLITS, Computed, Section, Table

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
        arms = table.choose(experiment, arms)
        renderings = {
            "md": to_markdown(table, experiment, numbers, arms),
            "csv": to_csv(numbers),
            "tex": to_latex(table, experiment, numbers, arms),
        }
    return write_texts(Path(folder) / table.file_name(experiment), renderings)


def write_texts(path: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write each text beside `path`, with its key as suffix. Returns the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in texts]
    for target, text in zip(paths, texts.values(), strict=True):
        target.write_text(text, encoding="utf-8", newline="\n")
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
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for arm, runs in arms.items():
        by_seeds.setdefault(runs.seeds, []).append(arm)
    seeds = [", ".join(map(str, these)) for these in by_seeds]
    if len(seeds) > 1:
        seeds = [f"{these} of {', '.join(named)}" for these, named in zip(seeds, by_seeds.values(), strict=True)]
    found = [
        f"Made by `python -m experiments tables {experiment}` from the records of `experiment={experiment}` "
        f"({from_where(arms)})." + _setting(arms),
        f"Cells: mean ± sample standard deviation over the seeds ({'; '.join(seeds)}); ↑ higher is better, "
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
    if "accuracy_paper_parser" in table.shown_metrics():
        found.append(
            "Accuracy (paper's parser) is computed as the published accuracy was: it reads `1,234` as 234 and `1e5` as "
            "5, limits answers to ±1e10, so that a right answer beyond it is wrong, and accepts a relative error of "
            "1e-5. See `docs/numbers.md`."
        )
    found += table.notes
    found += _labels(arms) + _ceilings(table, arms) + beyond_limit(table.splits, arms)
    if ids := disputed(arms):
        found.append(f"The outputs hold other results of these runs; the published ones count: {', '.join(ids)}.")
    found += gaps(experiment, arms)
    return found


def _labels(arms: Mapping[str, ArmRuns]) -> list[str]:
    """The sentence on what λ is relative to, for the arms whose records say so."""
    counts: dict[str, list[str]] = {}
    for arm, runs in arms.items():
        for value in {record.labels_per_number for record in runs.finished.values()} - {None}:
            counts.setdefault(number(value), []).append(arm)
    if not counts:
        return []
    shown = "; ".join(f"{count} ({_names(names)})" for count, names in counts.items())
    return [
        f"Labels per number label in training: {shown}. CE is a mean over labels and NTL one over number labels: per "
        "number token, NTL weighs λ times this relative to CE. For λ in units of the published tokenizer see "
        "`results/tables/calibration/loss_scale.md`."
    ]


def _ceilings(table: Table, arms: Mapping[str, ArmRuns]) -> list[str]:
    """Sentences on what an arm cannot reach, even by predicting every target: its encoding loses part of a text."""
    lost: dict[str, list[str]] = {}
    for arm, runs in arms.items():
        if not any(CEILING in record.content["metrics"] for record in runs.finished.values()):
            continue
        places = [
            f"{title(name)} {number(value)} ({SPLITS.get(split, split)})"
            for split in table.splits
            for name in table.shown_metrics()
            if describe(name).kind in ("score", "error")
            for value in sorted(set(runs.values(split, name, state=CEILING).values()))
            if value != (1 if describe(name).kind == "score" else 0)
        ]
        if places:
            lost.setdefault(", ".join(places), []).append(arm)
    return [
        f"Ceiling of {_names(names)}: {places}; a model that predicts every target reaches no more, because the "
        "encoding does not give back every reference answer as it is."
        for places, names in lost.items()
    ]


def beyond_limit(splits: Iterable[str], arms: Mapping[str, ArmRuns]) -> list[str]:
    """Sentences on reference answers that are longer than an answer may be, for each split and count."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for split in splits:
        for arm, runs in arms.items():
            for record in runs.finished.values():
                count = record.content["data"].get("references_beyond_limit", {}).get(split)
                if count:
                    names = found.setdefault((split, count, record.content["model"].get("max_new_tokens")), [])
                    names += [arm] if arm not in names else []
    return [
        f"{SPLITS.get(split, split)}: {count:,} reference answers have more tokens than an answer of {_names(names)} "
        f"may have ({limit}), so that no answer to them can be right. `eval.limit_from=all` takes the limit from all "
        "splits."
        for (split, count, limit), names in found.items()
    ]


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


def decimal(value: float, places: int, sign: bool = False) -> str:
    """A plain decimal with so many places, a true minus sign, and none before a zero."""
    return f"{round(value, places) + 0.0:{'+' if sign else ''}.{places}f}".replace("-", "−")


def number(value: float | None, sign: bool = False, size: float | None = None) -> str:
    """A number in print: three decimals for small ones, fewer for large ones, `–` for none.

    Args:
        size: the magnitude that decides the places, `value`'s own by default. A mean and its spread share it.
    """
    if value is None or pd.isna(value):
        return "–"
    size = abs(value) if size is None else size
    if size >= 1e5:
        return f"{value:{'+' if sign else ''}.2e}".replace("-", "−")
    return decimal(value, 3 if size < 10 else 2 if size < 100 else 1, sign)


def interval(compared: Paired) -> str:
    """A difference with its interval in print, all three with the same places."""
    if compared.low is None or compared.high is None:
        return number(compared.difference, sign=True)
    if compared.difference == compared.low == compared.high == 0:
        return "exactly 0"
    size = max(abs(compared.low), abs(compared.high))
    text, low, high = (number(x, sign=True, size=size) for x in (compared.difference, compared.low, compared.high))
    return f"{text} [{low}, {high}]"


def probability(p: float | None) -> str:
    """A p-value in print."""
    if p is None or pd.isna(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3g}"


def _mean_text(cell: Any) -> str:
    if pd.isna(cell.mean):
        return "missing" if cell.kind == "arm" and cell.n == 0 else "–"  # –: undefined in every run, or not scored
    text = number(cell.mean)
    if pd.notna(cell.sd):
        text += f" ± {number(cell.sd, size=abs(cell.mean))}"
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
    spread = f" ± {decimal(cell.paper_sd, decimals)}" if pd.notna(cell.paper_sd) else ""
    return f"{decimal(cell.paper, decimals)}{spread}"


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


def _setting(arms: Mapping[str, ArmRuns]) -> str:
    """What was trained, from the first record at hand."""
    runs = first_with_runs(arms)
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
