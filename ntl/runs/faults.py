"""Faults of the machine, recognised in whatever form they come: memory that runs out, and disks that are full.

Torch, the library and the system report them in many ways.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors, which is written in Rust, gives the number of the system's error; torch gives none.
_FULL = re.compile(rf"\(os error ({'|'.join(map(str, FULL))})\)")
_NOT_WRITTEN = re.compile(r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos")
_NO_MEMORY = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate ([\d.]+ \w+)|unable to allocate ([\d.]+ \w+)", re.IGNORECASE)


class OutOfMemory(RuntimeError):
    """The memory of the machine, or of its GPU, does not suffice for a run as it is configured.

    Attributes:
        during: what the run was doing, such as "training" or "answering"; None before that.
    """

    during: str | None = None


class DiskFull(OSError):
    """A disk takes no more. Nothing is wrong with the run, which can go on once there is room."""


@contextlib.contextmanager
def explained(folder: Path | None, during: str | None = None) -> Iterator[None]:
    """Raise what the block raises, a fault of the machine as `named` gives it, from where it came."""
    try:
        yield
    except Exception as error:
        fault = named(error, folder, during)
        if fault is error:
            raise
        raise fault.with_traceback(error.__traceback__) from error


def named(error: Exception, folder: Path | None = None, during: str | None = None) -> Exception:
    """Return the fault that an error tells of, or the error itself if it tells of none.

    Args:
        folder: where the run writes that met it.
        during: what that run was doing.
    """
    if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return error  # it says all already
    for cause in _chain(error):
        if reason := _why_not_written(cause):
            return DiskFull(_disk_full(reason, folder))
        if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and _NO_MEMORY.search(str(cause))):
            return _out_of_memory(str(cause), folder, during)
    return error


def room(folder: Path) -> str:
    """Say how much is free on the disk of `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.2f} MiB"


def forget(error: BaseException) -> None:
    """Free what the functions that an error has ended still hold.

    A sweep keeps the errors of its runs to its end, and with them models and activations that the next run needs the
    memory of.
    """
    for cause in _chain(error):
        traceback.clear_frames(cause.__traceback__)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, as a traceback shows them."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _why_not_written(error: BaseException) -> str | None:
    """Why a disk did not take a file, if it is that of which the error tells."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in FULL else None
    if found := _FULL.search(str(error)):
        return os.strerror(int(found[1]))
    return "torch could not write a file to its end" if _NOT_WRITTEN.search(str(error)) else None


def _disk_full(reason: str, folder: Path | None) -> str:
    where = f"{folder} lies on a disk with {room(folder)} free. " if folder else ""
    again = "Make room, then give the same command again: it goes on from the last checkpoint"
    return f"the disk is full, or takes no more of this ({reason}). {where}{again}"


def _out_of_memory(said: str, folder: Path | None, during: str | None) -> OutOfMemory:
    asked = _ASKED.search(said)
    size = f" ({asked[1] or asked[2]} more were asked for)" if asked else ""
    when = f" while {during}" if during else " before training" if folder else ""
    fault = OutOfMemory(f"out of memory{when}{size}")
    fault.during = during
    return fault
