"""Publishing: from a user's outputs to the results of the repository."""

import pytest
from helpers.made_records import FAILED, add_answers, metrics, scores, write_record

from experiments.__main__ import main
from experiments.config.compose import run_config


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "outputs", tmp_path / "results"


@pytest.fixture
def run(folders, ablation):
    """The folder of a finished run, with its model and what else lies there."""
    path = write_record(folders[0], run_config(ablation, "ce", 0), scores(metrics(0.5, 0.2)))
    add_answers(path)
    (path.parent / "model").mkdir()
    for name in ("config.json", "model/weights", "record-1.json"):
        (path.parent / name).write_text("{}")
    return path.parent


def publish(folders, *runs):
    outputs, results = map(str, folders)
    return main(["publish", *map(str, runs), "--outputs", outputs, "--results", results])


@pytest.mark.parametrize("by", ["id", "folder"])
def test_the_record_and_its_files_are_copied_and_nothing_else(by, folders, run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert publish(folders, run.name if by == "id" else run) == 0
    (copy,) = folders[1].glob("runs/arithmetic/*")
    assert copy.name == run.name
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        name: (run / name).read_bytes() for name in ("record.json", "predictions.parquet")
    }
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "1 new, 0 known" in capsys.readouterr().out
    assert publish(folders, run.name) == 0
    assert "0 new, 1 known" in capsys.readouterr().out


def test_a_failed_run_is_not_published(folders, ablation, capsys):
    path = write_record(folders[0], run_config(ablation, "ce", 1), failed=FAILED)
    assert publish(folders, path.parent.name) == 1
    assert "only finished runs are published" in capsys.readouterr().err
    assert not folders[1].exists()


def test_another_published_record_of_the_run_stays(folders, run, ablation, capsys):
    path = write_record(folders[1], run_config(ablation, "ce", 0), scores(metrics(0.6, 0.2)))
    content = path.read_bytes()
    assert publish(folders, run.name) == 1
    assert "two records of one run" in capsys.readouterr().err and path.read_bytes() == content


def test_an_unknown_run_is_named_with_the_nearest(folders, run, capsys):
    assert publish(folders, run.name[:-1], run.name) == 2
    assert f"nearest: {run.name}" in capsys.readouterr().err
    assert publish(folders) == 2 and not folders[1].exists()
