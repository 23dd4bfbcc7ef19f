"""Sweeps that are killed, or started twice, and the tables that come out: those of the sweep that nothing disturbs."""

import io
import os
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from helpers.copied_tree import copy_tree
from test_run import SMALL

pytestmark = pytest.mark.slow

# In the place of the quickstart, which has a table of its own: four runs of a second or two.
LENGTH = {"train.steps": 120, "train.eval_every": 40, "train.accumulate": 2, "model.architecture.dropout_rate": 0.1}
EXPERIMENT = """# @package _global_
defaults:
  - override /dataset: multiplication
  - override /model: t5_nano
experiment: quickstart
arms:
  ce: [loss=ce]
  ntl_was@0.3: [loss=ntl_was, loss.weight=0.3]
seeds: [0, 1]
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A copy of the code whose quickstart is small enough to be run here again and again."""
    suite = copy_tree(tmp_path_factory.mktemp("suite") / "ntl")
    options: dict = {}
    for name, _, value in (a.partition("=") for a in SMALL if a.count(".") and not a.startswith("train.steps")):
        options[name] = value
    options |= LENGTH
    yaml = EXPERIMENT + nested(options)
    (suite / "conf" / "experiment" / "quickstart.yaml").write_text(yaml)
    return suite


def nested(options):
    """Dotted names as yaml."""
    lines, before = [], []
    for name, value in sorted(options.items()):
        *parents, last = name.split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                lines.append(f"{'  ' * depth}{parent}:")
        before = parents
        lines.append(f"{'  ' * len(parents)}{last}: {value}")
    return "\n".join(lines) + "\n"


class Sweep:
    """One command, in a process group of its own as a shell would start it."""

    def __init__(self, suite, folder, *arguments):
        self.suite, self.folder = suite, folder
        places = [f"paths.{name}={folder / name}" for name in ("data", "outputs", "results")]
        line = [sys.executable, "run.py", "-m", "experiment=quickstart", "logger=none", *arguments, *places]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        self.process = subprocess.Popen(line, cwd=suite, **streams)

    def end(self):
        self.said = self.process.communicate()[0]
        return self.process.returncode

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.said = self.process.communicate()[0]

    def wait_for(self, condition):
        while not condition():
            if self.process.poll() is not None:
                self.kill()
                raise AssertionError(self.said)
            time.sleep(0.02)


def records(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob("outputs/runs/*/*/record.json")}


def tables(suite, folder):
    """What `python -m experiments` makes of the records, by name."""
    line = [sys.executable, "-m", "experiments", "tables", "quickstart", "--outputs", str(folder / "outputs")]
    done = subprocess.run(line, cwd=suite, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_bytes() for path in (folder / "outputs" / "tables").iterdir()}
    assert set(found) == {"quickstart.md", "quickstart.csv", "quickstart.tex"}
    return found


@pytest.fixture(scope="module")
def expected(suite, tmp_path_factory):
    """The tables of a sweep that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep = Sweep(suite, folder)
    assert sweep.end() == 0, sweep.said
    assert len(records(folder)) == 4
    found = tables(suite, folder)
    rows = pd.read_csv(io.BytesIO(found["quickstart.csv"]))
    assert set(rows[rows["row"].isin(["ce", "ntl_was@0.3"])]["n"]) == {2}
    return found


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_killed_sweep_ends_with_the_tables_of_the_undisturbed_one(
    launcher, suite, expected, tmp_path, record_property
):
    """SIGKILL to all its processes at once, in the middle of a run when another one has finished."""
    sweep = Sweep(suite, tmp_path, f"hydra/launcher={launcher}")

    def in_the_middle():
        found = records(tmp_path)
        sealed = tmp_path.glob("outputs/runs/*/*/checkpoints/checkpoint-*/sealed.json")
        return found and any(path.parents[2].name not in found for path in sealed)

    sweep.wait_for(in_the_middle)
    sweep.kill()
    kept = records(tmp_path)
    assert 1 <= len(kept) < 4
    sweep = Sweep(suite, tmp_path, f"hydra/launcher={launcher}")
    assert sweep.end() == 0, sweep.said
    if launcher == "basic":  # joblib's processes write to their logs alone
        assert sweep.said.count("skip, it is finished") == len(kept) and "going on from step" in sweep.said
    found = records(tmp_path)
    assert len(found) == 4 and {name: found[name] for name in kept} == kept
    assert tables(suite, tmp_path) == expected
    record_property("faults", 1)
    record_property("kills", 1)


def test_two_sweeps_at_once_do_each_run_once(suite, expected, tmp_path):
    sweeps = [Sweep(suite, tmp_path) for _ in range(2)]
    assert [sweep.end() for sweep in sweeps] == [0, 0], [sweep.said for sweep in sweeps]
    said = "".join(sweep.said for sweep in sweeps)
    done = re.findall(r"(\S+): recorded in", said)
    assert len(done) == len(set(done)) == 4 and set(done) == set(records(tmp_path))
    assert len(re.findall(r": skip, (?:it is finished|it is running|run \S+ is)", said)) == 4
    assert tables(suite, tmp_path) == expected
