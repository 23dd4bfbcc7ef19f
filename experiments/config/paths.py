"""Where files lie: defaults are folders of the repository; a relative path that somebody gives is one of theirs.

`run.py`, `python -m experiments` and `python -m data_prep` follow this rule from any working directory. Defaults name
their folder by `in_repository` (in yaml: `${in_repository:outputs}`) and are absolute; what is given on a command line
is taken as it stands, so that it is relative to the current directory, as in any other program.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def in_repository(name: str) -> str:
    """The absolute path of a file or folder of this repository."""
    return str(ROOT / name)
