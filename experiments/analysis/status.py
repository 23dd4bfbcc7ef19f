"""How far the sweeps are: each arm and seed is finished, running, interrupted, failed, outdated or missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.analysis.records import OUTPUTS, ArmRuns, Records, arm_runs, command, key
from experiments.config.compose import Experiment, load_experiment, run_config
from ntl.runs.run import Run

STATES = ("finished", "running", "interrupted", "failed", "outdated", "missing")
STYLES = {"finished": "green", "running": "cyan", "interrupted": "yellow", "failed": "bold red", "outdated": "magenta"}


@dataclass(frozen=True)
class State:
    """The state of one arm and seed; `detail` says why it failed, or which run it is."""

    name: str
    detail: str = ""
    published: bool = False


def survey(experiment: Experiment, records: Records, outputs: Path = OUTPUTS) -> dict[str, dict[int, State]]:
    """The state of every arm and seed of an experiment, in the yaml's order."""
    work = _at_work(Path(outputs), records)
    return {
        arm: {seed: _state(runs, seed, work.get(key(run_config(experiment, arm, seed)))) for seed in runs.seeds}
        for arm, runs in arm_runs(experiment, records).items()
    }


def show(names: Sequence[str], records: Records, outputs: Path = OUTPUTS, console: Console | None = None) -> None:
    """Print the status of experiments: a table on a terminal, else one plain line for each arm."""
    console = console or Console(highlight=False, soft_wrap=True)
    for name in names:
        experiment = load_experiment(name)
        states = survey(experiment, records, outputs)
        if console.is_terminal:
            console.print(_table(experiment, states))
        else:
            for arm, by_seed in states.items():
                console.print(f"{name}  {arm}  {_line(by_seed)}", markup=False)
        for text in summary(experiment, states):
            console.print(text, markup=False)


def summary(experiment: Experiment, states: dict[str, dict[int, State]]) -> list[str]:
    """Totals, the reason of each failure, and the commands that would do the rest."""
    counts = Counter(state.name for by_seed in states.values() for state in by_seed.values())
    rest = ", ".join(f"{counts[name]} {name}" for name in STATES[1:] if counts[name])
    own = sum(s.name == "finished" and not s.published for by in states.values() for s in by.values())
    source = f" ({own} in outputs, not published)" if own else ""
    finished = f"{counts['finished']} of {counts.total()} runs finished{source}"
    lines = [f"{experiment.name}: {finished}{', ' if rest else ''}{rest}"]
    failures = [(arm, seed, s) for arm, by in states.items() for seed, s in by.items() if s.name == "failed"]
    lines += [f"  failed: {arm}, seed {seed}: {state.detail}" for arm, seed, state in failures]
    if counts["missing"] or counts["interrupted"] or counts["outdated"]:
        lines.append(f"  to run the rest: {command(experiment.name)}")
    if failures:
        arms = dict.fromkeys(arm for arm, _, _ in failures)
        lines.append(f"  to run the failed again: {command(experiment.name, arms, retry=True)}")
    return lines


def _state(runs: ArmRuns, seed: int, at_work: Run | None) -> State:
    if seed in runs.finished:
        return State("finished", runs.finished[seed].id, runs.finished[seed].published)
    working = at_work.status() if at_work else "missing"
    if working == "running":
        return State("running", at_work.id)
    if seed in runs.failed:
        return State("failed", runs.failed[seed].reason)
    if working == "interrupted":
        return State("interrupted", at_work.id)
    return State("outdated", runs.outdated[seed].id) if seed in runs.outdated else State("missing")


def _at_work(outputs: Path, records: Records) -> dict[str, Run]:
    """Runs that have a folder in the outputs but no finished record, by their configuration, which the folder holds."""
    finished = {record.id for record in records if record.finished}
    found = {}
    for path in sorted(outputs.glob("runs/*/*/config.json")):
        if path.parent.name in finished:
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found[content["key"]] = Run(content["config"], path.parent.name, outputs)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # half written, or by another version: then nothing is known of it
    return found


def _table(experiment: Experiment, states: dict[str, dict[int, State]]) -> Table:
    table = Table(title=experiment.name, title_justify="left")
    table.add_column("arm")
    for seed in experiment.seeds:
        table.add_column(f"seed {seed}")
    for arm, by_seed in states.items():
        shown = (by_seed.get(seed) for seed in experiment.seeds)
        cells = [f"[{STYLES.get(state.name, 'dim')}]{state.name}[/]" if state else "" for state in shown]
        table.add_row(escape(arm), *cells)
    return table


def _line(by_seed: dict[int, State]) -> str:
    parts = []
    for name in STATES:
        seeds = [str(seed) for seed, state in by_seed.items() if state.name == name]
        if seeds:
            parts.append(f"{name} {','.join(seeds)}")
    return "  ".join(parts)
