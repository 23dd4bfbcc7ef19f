"""A loss, a data set, a metric or an experiment is added by a Python file and at most one yaml, with no other edit."""

import json

import pytest
from helpers.copied_tree import command, copy_tree, documented_files

DATASET = {
    "data_prep/squares.py": '''
"""Squares of whole numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from data_prep.base import Dataset, Row, Work
from ntl.options import option


@dataclass
class Squares(Dataset):
    """Options of `conf/dataset/squares.yaml`."""

    sources: ClassVar = {"generator": "computed here"}
    typical_tokens: ClassVar = (8, 4)
    licence: ClassVar = "no one else's data"
    test_splits: ClassVar = ("test",)

    name: str = "squares"
    size: int = option(1000, "questions of the training split", at_least=10)

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        rows = [{"question": f"What is {n} * {n}?", "answer": str(n * n)} for n in range(self.size + 8)]
        yield from {"test": rows[:4], "validation": rows[4:8], "train": rows[8:]}.items()
''',
    "conf/dataset/squares.yaml": "name: squares\n_target_: data_prep.squares.Squares\nsource: generator\nsize: 50\n",
}
EXPERIMENT = {
    "conf/experiment/tiny.yaml": """
# @package _global_
defaults:
  - override /dataset: squares
experiment: tiny
arms:
  ce: [loss=ce]
  mine@0.5: [loss=mine, loss.weight=0.5]
seeds: [0]
model:
  vocab_size: 260
  architecture: {d_model: 16, d_kv: 8, d_ff: 32, num_layers: 1, num_decoder_layers: 1, num_heads: 2}
train: {steps: 4, batch_size: 8, eval_every: 2, warmup_steps: 1, threads: 1}
""",
    "experiments/tiny.py": """
from experiments.analysis.table import Table

TABLES = (Table("Tiny", ("test",), ("accuracy", "within_one_percent"), "ce"),)
""",
}


def test_the_readme_shows_a_loss_and_a_metric():
    assert set(documented_files()) == {"ntl/losses/mine.py", "conf/loss/mine.yaml", "ntl/evaluation/metrics/within.py"}


@pytest.mark.slow
def test_what_is_added_by_files_alone_is_run_by_the_usual_commands(tmp_path):
    tree = copy_tree(tmp_path)
    for name, content in (documented_files() | DATASET | EXPERIMENT).items():
        assert not (tree / name).exists()
        (tree / name).write_text(content)
    assert "squares is ready" in command(tree, "-m", "data_prep", "squares")
    assert "size" in command(tree, "-m", "data_prep", "squares", "--help")
    command(tree, "run.py", "-m", "experiment=tiny", "logger=none")
    assert "tiny: 2 of 2 runs finished" in command(tree, "-m", "experiments", "status", "tiny")
    command(tree, "-m", "experiments", "tables", "tiny")
    table = (tree / "outputs" / "tables" / "tiny.md").read_text()
    assert "Within 1 % ↑" in table and "mine@0.5 − ce" not in table
    records = {
        record["config"]["loss"]["name"]: record
        for record in map(json.loads, (path.read_text() for path in tree.glob("outputs/runs/squares/*/record.json")))
    }
    assert set(records) == {"ce", "mine"}
    assert records["mine"]["config"]["loss"]["weight"] == 0.5
    assert records["mine"]["data"]["sizes"] == {"train": 50, "validation": 4, "test": 4}
    for row in ("ce", "mine@0.5", "untrained", "constant: median"):
        assert f"| {row} " in table
    assert "within_one_percent" in records["mine"]["metrics"]["trained"]["test"]["all"]
    # The new option is part of the run's identity.
    command(tree, "run.py", "experiment=tiny", "arm=mine@0.5", "loss.weight=0.25", "logger=none")
    assert len(list(tree.glob("outputs/runs/squares/*/record.json"))) == 3
