"""Records of several machines in one place."""

import shutil

import pytest
from helpers.made_records import FAILED, add_answers, metrics, scores, write_record

from experiments.__main__ import main
from experiments.config.compose import run_config
from ntl.runs.record import read_predictions, read_record


@pytest.fixture
def machine(tmp_path, ablation):
    """Make a results folder with the records of the given arms, seed 0, each with its answers."""

    def machine(name, *arms, accuracy=0.4, failed=()):
        for arm in (*arms, *failed):
            config = run_config(ablation, arm, 0)
            scored = scores(metrics(accuracy, 0.4))
            path = write_record(tmp_path / name, config, scored, failed=FAILED if arm in failed else None)
            if arm not in failed:
                add_answers(path)
        return tmp_path / name

    return machine


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def collect(home, *folders):
    return main(["collect", *map(str, folders), "--outputs", str(home)])


def test_new_records_are_copied_and_known_ones_passed_over(machine, capsys):
    home, first, second = machine("home", "ce"), machine("first", "ce", "ntl_was@0.3"), machine("second", "ntl_mae@0.3")
    before = contents(home)
    assert collect(home, first, second) == 0
    assert "2 new, 1 known, 0 not collected" in capsys.readouterr().out
    assert contents(home) == before | contents(first) | contents(second)
    assert collect(home, first, second) == 0
    assert "0 new, 3 known, 0 not collected" in capsys.readouterr().out
    for path in home.glob("runs/*/*/record.json"):
        assert read_predictions(path.parent)["text"].tolist() == ["7"]


@pytest.mark.parametrize("name", ["outputs", "results"])
def test_a_checkout_is_as_good_as_the_folder_in_it(name, machine, tmp_path):
    machine(f"checkout/{name}", "ce")
    assert collect(tmp_path / "home", tmp_path / "checkout") == 0
    assert contents(tmp_path / "home") == contents(tmp_path / "checkout" / name)


def test_another_record_of_the_same_run_is_told_and_the_rest_collected(machine, capsys):
    home = machine("home", "ce")
    before = contents(home)
    other = machine("other", "ce", accuracy=0.5)
    other = machine("other", "ntl_was@0.3")
    assert collect(home, other) == 1
    said = capsys.readouterr()
    assert "1 new, 0 known, 1 not collected" in said.out
    (path,) = home.glob("runs/*/*-ce-s0-*")
    assert f"not collected: {path.name}: " in said.err and "they differ in metrics" in said.err
    assert str(path) in said.err
    after = contents(home)
    assert {name: after[name] for name in before} == before
    assert len(list(home.glob("runs/*/*/record.json"))) == 2


def test_a_failure_here_is_not_replaced_without_being_asked(machine, capsys):
    home, other = machine("home", failed=["ce"]), machine("other", "ce")
    before = contents(home)
    assert collect(home, other) == 1
    assert "it is finished there and failed here" in capsys.readouterr().err
    assert contents(home) == before
    (path,) = home.glob("runs/*/*")
    shutil.rmtree(path)
    assert collect(home, other) == 0
    assert read_record(path)["status"] == "finished"


@pytest.mark.parametrize("part", ["record.json", "predictions.parquet", "predictions.parquet, gone"])
def test_what_arrives_damaged_is_not_taken(part, machine, tmp_path, capsys):
    other = machine("other", "ce", "ntl_was@0.3")
    path = next(other.glob(f"runs/*/*-ce-s0-*/{part.partition(',')[0]}"))
    if part.endswith("gone"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    assert collect(tmp_path / "home", other) == 1
    said = capsys.readouterr()
    assert "1 new, 0 known, 1 not collected" in said.out and str(path) in said.err
    assert [found.parent.name.split("-")[2] for found in (tmp_path / "home").glob("runs/*/*/record.json")] == [
        "ntl_was"
    ]


def test_a_folder_without_records_is_an_error(machine, tmp_path, capsys):
    assert collect(tmp_path / "home", tmp_path / "nothing") == 2
    assert f"got the folder {tmp_path / 'nothing'}, which holds no records" in capsys.readouterr().err
    assert main(["collect", "--outputs", str(tmp_path / "home")]) == 2
    assert not (tmp_path / "home").exists()
