"""Damaged records, set aside so that their runs can be done again. Nothing is deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ntl.runs.lease import is_held
from ntl.runs.record import RECORD, RecordError, read_whole


@dataclass
class Repaired:
    """What became of the damaged records that were found."""

    aside: list[tuple[Path, RecordError]] = field(default_factory=list)  # where it lies now, and what was wrong
    held: list[RecordError] = field(default_factory=list)  # a process is at work on the run: left alone


def repair(results: Path, outputs: Path) -> Repaired:
    """Move the folder of every record in `<root>/runs` that is not whole to `<root>/damaged/<id>`, for both roots.

    The record itself and the hashes of its other files are checked. A run that is held by a living process is left.
    """
    repaired = Repaired()
    for root in (results, outputs):
        for path in sorted((root / "runs").glob(f"*/*/{RECORD}")):
            try:
                read_whole(path.parent)
            except RecordError as error:
                if is_held(path.parent / "lease"):
                    repaired.held.append(error)
                else:
                    repaired.aside.append((_move(path.parent, root / "damaged"), error))
    return repaired


def _move(folder: Path, damaged: Path) -> Path:
    names = (folder.name if number == 1 else f"{folder.name}-{number}" for number in count(1))
    target = next(damaged / name for name in names if not (damaged / name).exists())
    damaged.mkdir(parents=True, exist_ok=True)
    return folder.rename(target)
