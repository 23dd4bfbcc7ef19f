"""`python -m data_prep NAME [key=value …]`: prepare a data set, or verify it where it is prepared already."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_prep import base
from ntl import options


def overview() -> str:
    """Return what there is to prepare: each data set with its sources and licence."""
    lines = ["data sets (`python -m data_prep NAME --help` shows the options of one):"]
    for name in base.names():
        cls = base.dataset_class(name)
        lines += ["", f"  {name}: {(sys.modules[cls.__module__].__doc__ or '').strip().splitlines()[0]}"]
        lines += [f"    source={source}: {text}" for source, text in cls.sources.items()]
        lines += [f"    licence: {cls.licence}"]
    return "\n".join(lines)


def options_of(name: str) -> str:
    """Return the options of a data set: default, meaning and range of each, and what its yaml says."""
    cls = base.dataset_class(name)
    yaml = (base.CONF / f"{name}.yaml").read_text(encoding="utf-8")
    lines = [line.removeprefix("#").removeprefix(" ") for line in yaml.splitlines() if line.startswith("#")]
    lines += ["", f"options of {name} (run.py takes them as dataset.key=value):"]
    declared = {key: one for key, one in options.options_of(cls).items() if key != "name"}
    declared["source"] = replace(declared["source"], choices=tuple(cls.sources))
    lines += options.described_options(declared)
    return "\n".join([*lines, "", "sources:", *(f"  source={key}: {text}" for key, text in cls.sources.items())])


def summary(data: base.PreparedData) -> str:
    """Return what was prepared, for people."""
    manifest = data.manifest
    lines = [f"{manifest['dataset']} is ready in {data.folder}"]
    for split, size in manifest["sizes"].items():
        dropped = {there: count for there, count in manifest["dropped"].get(split, {}).items() if count}
        note = ", ".join(f"{count:,} that stand in {there}" for there, count in dropped.items())
        lines.append(f"  {split:<12} {size:>10,} questions" + (f" (dropped: {note})" if note else ""))
    lines += [f"  fingerprint  {data.fingerprint[:16]}", f"  licence      {manifest['licence']}"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (0 ready, 1 data that cannot be used, 2 a wrong command)."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep",
        description="Prepare a data set below ROOT, or verify it where it is prepared already.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a data set")
    parser.add_argument("options", nargs="*", metavar="key=value", help="options that differ from their defaults")
    root = base.CONF.parents[1] / "data"
    parser.add_argument("--root", type=Path, default=root, help="where prepared data lie (default: data/ of the suite)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("-h", "--help", action="store_true", help="show this, or the options of NAME")
    given = parser.parse_intermixed_args(arguments)
    try:
        if given.name is None:
            print(parser.format_help() + "\n" + overview())
            return 0 if given.help else 2
        if given.help:
            print(options_of(given.name))
            return 0
        dataset = base.load(given.name, given.options)
        dataset.check()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(summary(dataset.prepare(given.root, progress=not given.quiet)))
    except base.DataError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: nothing half made is left; run again to prepare the data.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
