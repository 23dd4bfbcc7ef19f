"""Damaged records are named by every command, and set aside on request."""

import shutil

import pytest
from helpers.made_records import add_answers

from experiments.__main__ import main
from experiments.analysis.records import load
from ntl.runs.record import read_record
from ntl.runs.run import Run


@pytest.fixture
def damaged(results):
    """The folder of a record that somebody has edited by hand."""
    path = sorted(results.glob("runs/*/*/record.json"))[0]
    path.write_text(path.read_text()[:-40])
    return path.parent


def experiments(results, *arguments):
    return main([*arguments, "--results", str(results), "--outputs", str(results / "outputs")])


@pytest.mark.parametrize("command", [["status"], ["tables", "ablation"], ["figures", "ablation"], ["claims"]])
def test_every_command_names_it_and_nothing_is_written(command, damaged, results, capsys, record_property):
    before = sorted(results.rglob("*"))
    assert experiments(results, *command) == 1
    assert f"{damaged / 'record.json'} is not a whole record" in capsys.readouterr().err
    assert sorted(results.rglob("*")) == before
    record_property("faults", 1)


def test_it_is_set_aside_and_the_rest_stays(damaged, results, capsys, record_property):
    content = (damaged / "record.json").read_bytes()
    others = {path for path in results.glob("runs/*/*/record.json") if path.parent != damaged}
    for number in ("", "-2"):
        aside = results / "damaged" / f"{damaged.name}{number}"
        assert experiments(results, "status", "ablation", "--repair") == 0
        said = capsys.readouterr().out
        assert f"{damaged.name}: set aside in {aside}" in said
        assert "of 50 runs finished" in said or "missing" in said
        assert (aside / "record.json").read_bytes() == content
        assert {record.path for record in load(results)} == others
        damaged.mkdir()  # it happens again
        (damaged / "record.json").write_bytes(content)
    record_property("faults", 2)


def test_a_file_that_is_not_what_the_record_says_counts_as_damage(results, capsys, record_property):
    folder = next(path.parent for path in results.glob("runs/*/*/record.json") if read_record(path)["reason"] is None)
    add_answers(folder / "record.json")
    (name,) = read_record(folder)["files"]
    (folder / name).write_bytes(b"other")
    assert experiments(results, "status", "ablation", "--repair") == 0
    assert not folder.exists()
    assert (results / "damaged" / folder.name / name).read_bytes() == b"other"
    record_property("faults", 1)


def test_what_a_living_process_holds_is_left(damaged, results, tmp_path, capsys, record_property):
    dataset = damaged.parent.name
    config = {"dataset": {"name": dataset}, "model": {"name": "m"}, "loss": {"name": "l"}, "seed": 0}
    other = Run(config, damaged.name, tmp_path / "other")
    with other.lease():  # a run cannot be taken up whose record is damaged: it is damaged afterwards
        shutil.copytree(other.folder / "lease", damaged / "lease")
        assert (
            main(["status", "ablation", "--repair", "--outputs", str(results), "--results", str(tmp_path / "x")]) == 1
        )
    assert "a process is at work on this run" in capsys.readouterr().err
    assert (damaged / "record.json").exists()
    record_property("faults", 1)
