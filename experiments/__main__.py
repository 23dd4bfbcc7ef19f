"""What the records say; without a command, all that needs no computation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Imports of what is slow to load stand in the functions, so that --help and a misspelt word are answered at once.


def tables(args: argparse.Namespace) -> int:
    """write results/tables/NAME.{md,csv,tex}"""
    from experiments.analysis.tables import write

    code = _write(args, "TABLES", write, "tables")
    if not args.names and (args.results / "runtime").is_dir():
        from experiments.benchmark import runtime as measured

        for path in measured.write_tables(args.results):
            print(path)
    if args.results == ROOT / "results":
        from experiments.analysis.readme import refresh

        refresh(ROOT / "README.md", ROOT)
    return code


def figures(args: argparse.Namespace) -> int:
    """write results/figures/NAME.{png,svg}"""
    from experiments.analysis.figures import write

    code = _write(args, "FIGURES", write, "figures")
    if not args.names and (args.results / "runtime").is_dir():
        from experiments.benchmark import runtime as measured

        for path in measured.write_figures(args.results):
            print(path)
    return code


def claims(args: argparse.Namespace) -> int:
    """write results/claims.{csv,md}: the verdict on every claim of the paper"""
    from experiments.analysis.claims import write

    for path in write(_records(args), args.results):
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
    """bring home the records below other machines' results folders, each a NAME; nothing here is overwritten"""
    from experiments.analysis.collect import collect as bring_home
    from experiments.config.compose import ConfigurationError

    if not args.names:
        raise ConfigurationError("collect needs a folder with records, as in python -m experiments collect ../cluster")
    collected = bring_home([Path(name) for name in args.names], args.results)
    for run_id in collected.new:
        print(f"new: {run_id}")
    for problem in collected.problems:
        print(f"not collected: {problem}", file=sys.stderr)
    counts = f"{len(collected.new)} new, {len(collected.known)} known, {len(collected.problems)} not collected"
    print(f"{counts}; records lie in {args.results / 'runs'}")
    return 1 if collected.problems else 0


def runtime(args: argparse.Namespace) -> int:
    """measure what the losses cost, and write the record, table and figure; NAME: loss, head, growth, step"""
    from experiments.benchmark import runtime as measured
    from experiments.config.compose import ConfigurationError
    from ntl.text import did_you_mean

    for name in args.names:
        if name not in measured.PARTS:
            raise ConfigurationError(did_you_mean("part of runtime", name, measured.PARTS))
    plan = measured.Plan(parts=tuple(args.names) or measured.PARTS, quick=args.quick)
    print(measured.run(plan, args.results))
    for path in measured.write_tables(args.results) + measured.write_figures(args.results):
        print(path)
    return 0


def everything(args: argparse.Namespace) -> int:
    """all of these that need no computation"""
    for command in (tables, figures, claims, status):
        if code := command(args):
            return code
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    function.__name__: function for function in (tables, figures, claims, status, plan, collect, runtime)
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
        print(f"python -m experiments: {error}", file=sys.stderr)
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
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where records lie and tables go")
    parser.add_argument("--outputs", type=Path, default=ROOT / "outputs", help="where runs work (for status)")
    args = parser.parse_intermixed_args(arguments)
    if args.command is not None and args.command not in COMMANDS:
        from ntl.text import did_you_mean

        print(f"python -m experiments: {did_you_mean('command', args.command, COMMANDS)}", file=sys.stderr)
        return 2
    return args


def _records(args: argparse.Namespace):
    from experiments.analysis.records import load

    if not hasattr(args, "records"):  # read once, however many commands follow
        args.records = load(args.results)
    return args.records


def _begun(args: argparse.Namespace) -> list[str]:
    """The experiments that there is something to show of: of which there is a record, or which need none."""
    from experiments.analysis.records import collect
    from experiments.config.compose import load_experiment
    from experiments.config.discovery import shown

    if not hasattr(args, "begun"):
        records = _records(args)

        def begun(name: str) -> bool:
            experiment = load_experiment(name)
            runs = collect(experiment, records).values()
            return not experiment.arms or any(arm.finished or arm.failed for arm in runs)

        args.begun = [name for name in shown() if begun(name)]
    return args.begun


def _own_scale_or_begun(args: argparse.Namespace) -> list[str]:
    """Every experiment of the own scale, and those at another of which there is a record."""
    from experiments.config.discovery import shown

    own = (name for name in shown() if "/" not in name)
    return list(dict.fromkeys([*own, *_begun(args)]))


def _write(args: argparse.Namespace, declared: str, write: Callable[..., list[Path]], folder: str) -> int:
    from experiments.analysis.records import collect
    from experiments.config.compose import load_experiment
    from experiments.config.discovery import module, named

    for name in named(args.names, _begun(args) if not args.names else ()):
        shown = getattr(module(name), declared, ())
        arms = collect(load_experiment(name), _records(args)) if shown else {}
        for one in shown:
            paths = write(one, name, arms, args.results / folder)
            for path in paths:
                print(path)
                if args.show and path.suffix == ".md":
                    print(f"\n{path.read_text(encoding='utf-8')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
