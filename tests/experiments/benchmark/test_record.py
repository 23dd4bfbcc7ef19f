"""The record of what the losses cost."""

import json

from experiments.__main__ import main
from experiments.benchmark import record as measured
from experiments.benchmark.settings import BenchmarkSettings


def test_one_part_can_be_measured_again(small_benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "PARTS", small_benchmark.parts)
    first = json.loads(measured.run(small_benchmark, tmp_path, say=lambda text: None).read_text())
    again = json.loads(
        measured.run(BenchmarkSettings(("head",), rounds=2), tmp_path, say=lambda text: None).read_text()
    )

    def of(record, part):
        return [row for row in record["measurements"] if row["part"] == part]

    assert of(first, "loss") == of(again, "loss")
    assert {len(row["seconds"]) for row in of(again, "head")} == {2}
    assert [row["part"] for row in again["measurements"]] == [row["part"] for row in first["measurements"]]
    elsewhere = measured.run(BenchmarkSettings(("head",)), tmp_path / "own", tmp_path, say=lambda text: None)
    assert of(json.loads(elsewhere.read_text()), "loss") == of(first, "loss")  # as published


def test_an_unknown_part(tmp_path, capsys):
    assert main(["runtime", "los", "--results", str(tmp_path)]) == 2
    assert "nearest: loss" in capsys.readouterr().err
