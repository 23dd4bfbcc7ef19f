"""Files: their hashes, and writing that survives a crash. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def durable(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing, and have it on the disk when the block is left.

    Args:
        mode: as in `open`; text is UTF-8 with line feeds on every system.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with open(path, mode, **text) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes, *, exclusive: bool = False) -> bool:
    """Write a file whole or not at all; a reader sees the old content or the new, never a part.

    Args:
        path: the file; its folder is created.
        content: all its bytes.
        exclusive: leave a file that already exists as it is, and return False.

    Raises:
        OSError: the disk is full or cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        with durable(temporary, "xb") as stream:
            stream.write(content)
        if not exclusive:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError:  # no hard links here
                if path.exists():
                    return False
                os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
