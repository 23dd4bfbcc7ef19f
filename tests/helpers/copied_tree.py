"""A copy of the code in a folder of the test's own, where files can be added and commands be run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def documented_files() -> dict[str, str]:
    """The files that the README and docs/extending.md show for adding a loss and a metric, by path."""
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    named = ((re.match(r"# (\S+\.(?:py|yaml))\n", block), block) for block in blocks)
    return {match[1]: block for match, block in named if match}


def copy_tree(folder: Path) -> Path:
    """Copy all that the commands need, without records, into `folder`; returns it."""
    for name in ("conf", "data_prep", "experiments", "ntl", "results/paper"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("run.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def command(folder: Path, *line: str, code: int = 0) -> str:
    """Run `python LINE …` in a copy; returns its output, followed by its errors.

    Raises:
        AssertionError: the exit code is not `code`.
    """
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *line], cwd=folder, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    return said
