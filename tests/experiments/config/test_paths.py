"""Defaults lie in the repository, what somebody names lies where they are."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.compose import compose

ROOT = Path(__file__).resolve().parents[3]


def test_defaults_lie_in_the_repository_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose()["paths"] == {name: str(ROOT / name) for name in ("data", "outputs", "results")}


def test_what_is_given_is_taken_as_it_stands():
    assert compose(["paths.outputs=mine"])["paths"]["outputs"] == "mine"


@pytest.mark.parametrize("given", [False, True])
def test_run_and_experiments_look_in_the_same_folders(given, tmp_path):
    """From another directory, both name the folder of the outputs in an error."""
    options = {"run": ["paths.outputs=mine"], "experiments": ["--outputs", "mine"]} if given else {}
    commands = {
        "run": [ROOT / "run.py", "predict", "run=nothing", "1"],
        "experiments": ["-m", "experiments", "publish", "nothing"],
    }
    outputs = tmp_path / "mine" if given else ROOT / "outputs"
    for name, command in commands.items():
        line = [sys.executable, *map(str, command), *options.get(name, [])]
        done = subprocess.run(
            line, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}
        )
        assert done.returncode and ("nothing" in done.stderr)
        if given or not outputs.exists():
            assert str(outputs if not given else "mine") in done.stderr
    assert not (tmp_path / "mine").exists()
