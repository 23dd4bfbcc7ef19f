"""What the records say; without a command, all that needs no computation.

Tables, figures and claims in results/ rest on the published records (results/runs) alone. Where outputs/runs holds your
own runs of an experiment, the same with both is written to outputs/ as well; `publish` makes a run part of results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config.paths import ROOT, in_repository

if TYPE_CHECKING:
    from experiments.analysis.collect import Copied
    from experiments.analysis.records import ArmRuns, Record, Records

# Imports of what is slow to load stand in the functions, so that --help and a misspelt word are answered at once.


def tables(args: argparse.Namespace) -> int:
    """write results/tables/NAME.{md,csv,tex} (with your own runs: outputs/tables/…)"""
    from experiments.analysis.rendering import write

    code = _write(args, write, "tables")
    if args.results == ROOT / "results":
        from experiments.analysis.readme import refresh

        for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            refresh(document, ROOT)
    return code


def figures(args: argparse.Namespace) -> int:
    """write results/figures/NAME.{png,svg} (with your own runs: outputs/figures/…)"""
    from experiments.analysis.figures import write

    return _write(args, write, "figures")


def claims(args: argparse.Namespace) -> int:
    """write results/claims.{csv,md}: the verdict on every claim of the paper (with your own runs: outputs/claims.…)"""
    from experiments.analysis.claims import write

    paths = write(_published(args), args.results, args.results)
    if not all(record.published for record in _records(args)):
        paths += write(_records(args), args.results, args.outputs)
    for path in paths:
        print(path)
    return 0


def status(args: argparse.Namespace) -> int:
    """say for each arm and seed: finished, running, failed and why, missing"""
    from experiments.analysis.status import show
    from experiments.config.discovery import named

    if args.repair and not _repair(args):
        return 1
    show(named(args.names, _own_scale_or_begun(args) if not args.names else ()), _records(args), args.outputs)
    return 0


def _repair(args: argparse.Namespace) -> bool:
    """Set damaged records aside; returns whether none is left."""
    from experiments.analysis.repair import repair

    repaired = repair(args.results, args.outputs)
    for folder, error in repaired.aside:
        print(f"{error.path.parent.name}: set aside in {folder}: {error.problem}")
    for error in repaired.held:
        print(f"left alone, a process is at work on this run: {error}", file=sys.stderr)
    return not repaired.held


def plan(args: argparse.Namespace) -> int:
    """what each arm would take on a GPU: parameters, memory, FLOPs, hours (of paper/… unless named)"""
    from experiments.analysis import gpu_hours as planned
    from experiments.config.discovery import named, shown

    names = named(args.names, [name for name in shown() if name.startswith("paper/")])
    print(planned.write(names, args.gpu))
    return 0


def collect(args: argparse.Namespace) -> int:
    """bring home the records below other machines' folders, each a NAME, into outputs/; nothing here is overwritten"""
    from experiments.analysis.collect import collect as bring_home
    from experiments.config.compose import ConfigurationError

    if not args.names:
        raise ConfigurationError(
            "collect needs a folder with records, as in python -m experiments collect ../cluster/outputs"
        )
    return _copied(bring_home([Path(name) for name in args.names], args.outputs), "collected", args.outputs)


def publish(args: argparse.Namespace) -> int:
    """copy finished records, each a NAME (a run's id or folder, or runtime), from outputs/ to results/"""
    from experiments.analysis.publish import publish as copy
    from experiments.config.compose import ConfigurationError

    if not args.names:
        raise ConfigurationError("publish needs the id or folder of a run, as in python -m experiments publish ID")
    return _copied(copy(args.names, args.outputs, args.results), "published", args.results)


def rescore(args: argparse.Namespace) -> int:
    """compute text metrics again from predictions; NAME: experiments or run ids. Adds those that records lack"""
    from experiments.analysis.rescore import rescore

    done = rescore(_named_records(args), args.data)
    for run_id, reason in done.skipped.items():
        print(f"skipped: {run_id}: {reason}")
    for path, count in done.written.items():
        print(f"{count} metrics that the record lacks: {path}")
    for run_id, problems in done.problems.items():
        for problem in problems:
            print(f"not confirmed: {run_id}: {problem}", file=sys.stderr)
    print(f"{len(done.equal)} without differences, {len(done.skipped)} skipped, {len(done.problems)} not confirmed")
    return 1 if done.problems else 0


def options(args: argparse.Namespace) -> int:
    """what each option means, its default and valid values; NAME: model, dataset, loss, train, eval or logger"""
    from experiments.config.describe import options as described

    print(described(args.names))
    return 0


def _named_records(args: argparse.Namespace) -> list[Record]:
    """The records of the named experiments and runs, or all; a run that is published too has two."""
    from experiments.analysis.records import arm_runs, load
    from experiments.config.compose import ConfigurationError, experiment_names, load_experiment
    from ntl.text import did_you_mean

    found = [load(args.results), load(None, args.outputs)]
    every = {record.path: record for records in found for record in records}
    if not args.names:
        return list(every.values())
    chosen: dict[Path, Record] = {}
    for name in args.names:
        named = [record for record in every.values() if record.id == name]
        if not named and name not in experiment_names():
            known = [*experiment_names(), *dict.fromkeys(record.id for record in every.values())]
            raise ConfigurationError(did_you_mean("experiment or run", name, known))
        if not named:
            arms = [arm_runs(load_experiment(name), records) for records in found]
            named = [record for runs in arms for arm in runs.values() for record in arm.records]
        chosen |= {record.path: record for record in named}
    return list(chosen.values())


def _copied(copied: Copied, done: str, folder: Path) -> int:
    """Say what became of records that were to be copied; returns the exit code."""
    for run_id in copied.new:
        print(f"new: {run_id}")
    for problem in copied.problems:
        print(f"not {done}: {problem}", file=sys.stderr)
    counts = f"{len(copied.new)} new, {len(copied.known)} known, {len(copied.problems)} not {done}"
    print(f"{counts}; records lie in {folder}")
    return 1 if copied.problems else 0


def runtime(args: argparse.Namespace) -> int:
    """measure what the losses cost; record, table and figure go to outputs/. NAME: loss, head, growth, step"""
    from experiments.benchmark import record
    from experiments.benchmark.settings import PARTS, BenchmarkSettings
    from experiments.config.compose import ConfigurationError
    from ntl.text import did_you_mean

    for name in args.names:
        if name not in PARTS:
            raise ConfigurationError(did_you_mean("part of runtime", name, PARTS))
    settings = BenchmarkSettings(parts=tuple(args.names) or PARTS, quick=args.quick)
    print(record.run(settings, args.outputs, args.results))
    args.names = ["runtime"]
    return tables(args) or figures(args)


def loss_scale(args: argparse.Namespace) -> int:
    """measure how strongly NTL acts beside CE on training text, and write the table; NAME: experiments, or key=value"""
    from experiments.analysis import loss_scale as measured

    overrides = [name for name in args.names if "=" in name]
    names = [name for name in args.names if "=" not in name]
    print(measured.run(names, overrides, args.results, args.data, args.tokenizers))
    args.names = ["calibration/loss_scale"]
    return tables(args)


def everything(args: argparse.Namespace) -> int:
    """all of these that need no computation"""
    for command in (tables, figures, claims, status):
        if code := command(args):
            return code
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    function.__name__: function
    for function in (tables, figures, claims, status, plan, collect, publish, rescore, runtime, loss_scale, options)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for what was not understood, 1 for what could not be done."""
    args = _parse(list(sys.argv[1:] if arguments is None else arguments))
    if isinstance(args, int):
        return args
    from experiments.analysis.records import Conflict, RecordError
    from experiments.config.compose import ConfigurationError

    try:
        return COMMANDS.get(args.command, everything)(args)
    except ConfigurationError as error:
        print(f"python -m experiments: {error}", file=sys.stderr)
        return 2
    except (Conflict, RecordError) as error:
        from experiments.config.advice import told

        print(f"python -m experiments: {told(error)}", file=sys.stderr)
        return 1


def _parse(arguments: list[str]) -> argparse.Namespace | int:
    width = max(map(len, COMMANDS))
    described = "\n".join(f"  {name:{width}}  {function.__doc__}" for name, function in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        usage="python -m experiments [COMMAND] [NAME …] [options]",
        description=__doc__,
        epilog=f"commands:\n{described}\n\nnames: files of conf/experiment, such as ablation, gpu/ablation",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a short runtime: few tokens and rounds")
    parser.add_argument("--gpu", default="H200", help="of a plan: H200, H100, A100, L40S, RTX4090 or RTX3090")
    parser.add_argument("--repair", action="store_true", help="before the status, set damaged records aside")
    parser.add_argument("--show", action="store_true", help="print the tables as well")
    results, outputs, data = (Path(in_repository(name)) for name in ("results", "outputs", "data"))
    parser.add_argument("--results", type=Path, default=results, help="published records and what rests on them alone")
    parser.add_argument("--outputs", type=Path, default=outputs, help="your runs, and what rests on them too")
    parser.add_argument("--data", type=Path, default=data, help="of rescore and loss_scale: prepared data")
    parser.add_argument("--tokenizers", type=Path, help="of loss_scale: folder with t5/ and gpt2/, not the hub's")
    args = parser.parse_intermixed_args(arguments)
    if args.command is not None and args.command not in COMMANDS:
        from ntl.text import did_you_mean

        print(f"python -m experiments: {did_you_mean('command', args.command, COMMANDS)}", file=sys.stderr)
        return 2
    return args


def _records(args: argparse.Namespace) -> Records:
    """Published records and those of the user's own runs."""
    from experiments.analysis.records import load

    if not hasattr(args, "records"):  # read once, however many commands follow
        args.records = load(args.results, args.outputs)
    return args.records


def _published(args: argparse.Namespace) -> Records:
    from experiments.analysis.records import load

    if not hasattr(args, "published"):
        own = not all(record.published for record in _records(args))
        args.published = load(args.results) if own else args.records
    return args.published


def _begun(args: argparse.Namespace) -> list[str]:
    """The experiments that there is something to show of: of which there is a record, or which need none."""
    from experiments.analysis.records import arm_runs
    from experiments.config.compose import load_experiment
    from experiments.config.discovery import shown

    if not hasattr(args, "begun"):
        records = _records(args)

        def begun(name: str) -> bool:
            experiment = load_experiment(name)
            runs = arm_runs(experiment, records).values()
            return not experiment.arms or any(arm.finished or arm.failed for arm in runs)

        args.begun = [name for name in shown() if begun(name)]
    return args.begun


def _own_scale_or_begun(args: argparse.Namespace) -> list[str]:
    """Every experiment of the own scale, and those at another of which there is a record."""
    from experiments.config.discovery import shown

    own = (name for name in shown() if "/" not in name)
    return list(dict.fromkeys([*own, *_begun(args)]))


def _write(args: argparse.Namespace, write: Callable[..., list[Path]], kind: str) -> int:
    from experiments.config.discovery import declared, named

    for name in named(args.names, _begun(args) if not args.names else ()):
        for one, measured in declared(name, kind, args.results, args.outputs):
            for arms, root in _shown(args, name, one, measured):
                for path in write(one, name, arms, root / kind):
                    print(path)
                    if args.show and path.suffix == ".md":
                        print(f"\n{path.read_text(encoding='utf-8')}")
    return 0


def _shown(
    args: argparse.Namespace, name: str, declaration: Any, measured: Path
) -> list[tuple[Mapping[str, ArmRuns], Path]]:
    """The records that a table or figure is made of, and the folder that it goes to.

    What rests on published records alone goes to results/, so that trial runs change nothing there; what rests on the
    user's own runs too, and what has no record at all, to outputs/. What was measured stays in the folder `measured`.
    """
    from experiments.analysis import figures, table
    from experiments.analysis.records import arm_runs
    from experiments.config.compose import load_experiment

    if isinstance(declaration, table.Computed | figures.Computed):
        return [({}, measured)]
    experiment = load_experiment(name)
    published, every = (arm_runs(experiment, records) for records in (_published(args), _records(args)))
    found = [(published, args.results)] if any(runs.records for runs in published.values()) else []
    if not found or any(not record.published for runs in every.values() for record in runs.records):
        found.append((every, args.outputs))
    return found


if __name__ == "__main__":
    sys.exit(main())
