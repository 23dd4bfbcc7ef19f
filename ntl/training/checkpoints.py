"""Which checkpoints are whole.

A process can be killed, or a disk fill up, in the middle of writing a checkpoint, and a file can rot afterwards. A
checkpoint is therefore *sealed* when everything in it has been written: a list of its files with their sha256, itself
written atomically. Only a checkpoint that matches its seal is resumed from.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import TrainerState

from ntl.files import file_sha256, write_atomically

SEAL = "sealed.json"
STATE = "trainer_state.json"
log = logging.getLogger(__name__)


def seal(folder: Path) -> None:
    """Write the seal of a checkpoint that is complete on disk."""
    files = {path.relative_to(folder).as_posix(): file_sha256(path) for path in _files(folder)}
    write_atomically(folder / SEAL, json.dumps(files, indent=0, sort_keys=True).encode())


def flaw(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None where it is whole."""
    try:
        files = json.loads((folder / SEAL).read_text())
    except FileNotFoundError:
        return "it was not finished"
    except (OSError, ValueError) as error:
        return f"its seal cannot be read ({error})"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if file_sha256(path) != digest:
            return f"{name} has changed since it was written"
    return None


def last_whole(folder: Path) -> Path | None:
    """The newest checkpoint below `folder` that can be resumed from, or None.

    Damaged ones are said in the log and removed, so that training writes them anew. A checkpoint whose best
    predecessor is damaged is passed over too: the run could not end with its best weights.
    """
    sound: dict[str, bool] = {}

    def is_whole(path: Path) -> bool:
        if path.name not in sound:
            reason = flaw(path) if path.is_dir() else "it is gone"
            sound[path.name] = reason is None
            if reason is not None and path.is_dir():
                log.warning("checkpoint %s is not used: %s", path.name, reason)
                shutil.rmtree(path)
        return sound[path.name]

    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        if not is_whole(path):
            continue
        best = json.loads((path / STATE).read_text()).get("best_model_checkpoint")
        if best is None or is_whole(folder / Path(best).name):
            return path
        log.warning("checkpoint %s is not used: the best one before it is damaged", path.name)
        shutil.rmtree(path)
    return None


def locate_best(state: TrainerState, folder: Path) -> None:
    """Point `state` at the best checkpoint below `folder`, which may have been written elsewhere."""
    if state.best_global_step:
        state.best_model_checkpoint = str(folder / f"checkpoint-{state.best_global_step}")


def _files(folder: Path) -> list[Path]:
    """All files but the seal, finished or not."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name != SEAL and not path.name.startswith(f".{SEAL}")
    )
