"""Records brought home from other machines: new ones are copied, known ones passed over, contradictions told.

Nothing that lies here is ever overwritten: which of two different records of one run should count, a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.analysis.records import RESCORED
from experiments.config.compose import ConfigurationError
from ntl.files import write_atomically
from ntl.runs.record import RECORD, RecordError, read_record, read_whole


@dataclass
class Copied:
    """What became of the records that were to be copied, by run id."""

    new: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # damaged there or here, or unlike the one that lies here


def collect(folders: Sequence[Path], outputs: Path) -> Copied:
    """Copy the records below `folders` that are not yet below `outputs`.

    Args:
        folders: outputs or results folders, or checkouts that hold them (then the outputs are read).

    Raises:
        ConfigurationError: a folder without records.
    """
    collected = Copied()
    for runs in map(_runs, folders):
        for path in sorted(runs.glob(f"*/*/{RECORD}")):
            try:
                copy_record(path.parent, outputs / "runs" / path.relative_to(runs).parent, collected)
            except RecordError as error:
                collected.problems.append(str(error))
    return collected


def _runs(folder: Path) -> Path:
    for runs in (folder / "runs", folder / "outputs" / "runs", folder / "results" / "runs"):
        if any(runs.glob(f"*/*/{RECORD}")):
            return runs
    raise ConfigurationError(
        f"got the folder {folder}, which holds no records; expected a folder with runs/<dataset>/<id>/{RECORD} in it, "
        "such as outputs or results, or a checkout that has one"
    )


def copy_record(there: Path, here: Path, copied: Copied) -> None:
    """Copy one record with its files, or say in `copied` why that was not done.

    Raises:
        RecordError: one of the two is damaged.
    """
    files = read_whole(there)
    if not (here / RECORD).exists():
        if (there / RESCORED).exists():
            write_atomically(here / RESCORED, (there / RESCORED).read_bytes())
        for name, content in files.items():  # the record is the last
            write_atomically(here / name, content, exclusive=name == RECORD)
        copied.new.append(here.name)
    elif read_whole(here) == files:
        copied.known.append(here.name)
    else:
        copied.problems.append(_contradiction(there, here))


def _contradiction(there: Path, here: Path) -> str:
    """One sentence on two whole records of the same run that are not the same."""
    one, other = read_record(there), read_record(here)
    if one["status"] != other["status"]:
        what = f"it is {one['status']} there and {other['status']} here"
    else:
        unlike = [name for name in one if name != "digest" and one[name] != other.get(name)]
        what = f"they differ in {', '.join(unlike)}" if unlike else "they differ in how they are written"
    return (
        f"{here.name}: {there} and {here} are two records of one run: {what}. The one here stays; to take the other, "
        "move the folder here away and give the command again"
    )
