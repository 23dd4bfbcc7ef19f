"""What ends a run without being its fault, or with a known remedy: no memory, no room on the disk."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ntl.settings import EvalSettings, TrainSettings

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# As libraries say it that write files by other means than Python's: safetensors in Rust, torch in C++.
_NO_ROOM_TEXTS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "PytorchStreamWriter failed",
    "unexpected pos",
)
_NO_MEMORY_TEXTS = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc")


class OutOfMemory(MemoryError):
    """A run needs more memory than there is."""


class NoRoom(OSError):
    """A file could not be written whole."""


def is_no_room(error: BaseException) -> bool:
    """Return whether an error says that a file could not be written for lack of room: disk, quota, or size of file."""
    return any(
        (isinstance(e, OSError) and e.errno in _NO_ROOM) or any(text in str(e) for text in _NO_ROOM_TEXTS)
        for e in _chain(error)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory could not be allocated, on a GPU or for the CPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY_TEXTS)
    )


def no_room(error: BaseException) -> NoRoom:
    """Return the error that a user is to see where a file could not be written; nothing is wrong with the run."""
    file = getattr(error, "filename", None) or "a file of the run"
    return NoRoom(
        f"no room to write {file} ({_first_line(error)}); make room, "
        "then give the same command again: it goes on from the last checkpoint"
    )


def out_of_memory(error: BaseException, train: TrainSettings, evaluation: EvalSettings) -> OutOfMemory:
    """Return the same error with what to change, in terms of the settings that the run was given."""
    answering = any(Path(frame.filename).name == "evaluation.py" for frame in traceback.extract_tb(error.__traceback__))
    if answering:
        remedy = f"answer fewer questions at a time: eval.batch_size={max(1, evaluation.batch_size // 2)} retry=true"
    else:
        remedies = []
        if train.batch_size > 1:
            smaller = f"train.batch_size={(train.batch_size + 1) // 2} train.accumulate={2 * train.accumulate}"
            remedies.append(f"{smaller} (another run, of the same whole batch)")
        if train.fused != "linear" and not train.fsdp:
            remedies.append("train.fused=linear retry=true")
        if train.precision == "fp32":
            remedies.append("train.precision=bf16 on a GPU (another run)")
        remedies.append("a smaller model, or several GPUs with train=fsdp (docs/cluster.md)")
        remedy = f"try {'; '.join(remedies)}"
    said = OutOfMemory(f"out of memory ({_first_line(error)}); {remedy}")
    return said.with_traceback(error.__traceback__)


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line = re.sub(r"^\[enforce fail at .*?\] (err == 0\. )?", "", text.splitlines()[0])  # a line of torch's source
    return line.strip()[:300].rstrip(". ")


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
