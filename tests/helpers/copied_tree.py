"""A copy of the code in a folder of the test's own, where files can be added and commands be run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_tree(folder: Path) -> Path:
    """Copy all that the commands need, without records, into `folder`; returns it."""
    for name in ("conf", "data_prep", "experiments", "ntl", "results/paper"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("run.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def command(folder: Path, *line: str) -> str:
    """Run `python LINE …` in a copy; returns what it printed on both channels.

    Raises:
        AssertionError: the exit code is not 0.
    """
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, *line], cwd=folder, env=environment, **pipes)
    assert done.returncode == 0, done.stdout
    return done.stdout
