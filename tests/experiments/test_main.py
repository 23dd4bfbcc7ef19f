"""The command line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def test_help_is_quick_and_lists_every_command():
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert time.perf_counter() - start < 2
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabels"], "unknown command 'tabels'; nearest: tables"),
        (["zzz"], "unknown command 'zzz'; valid: claims"),
        (["tables", "ablatoin"], "unknown experiment 'ablatoin'; nearest: ablation"),
        (["status", "ablation", "quikstart"], "unknown experiment 'quikstart'; nearest: quickstart"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(arguments, message, tmp_path, capsys):
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_command_all_is_made_and_made_again_the_same(results, tmp_path, capsys):
    arguments = ["--results", str(results), "--outputs", str(tmp_path / "outputs")]
    assert main(arguments) == 0
    made = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    for name in ("tables/ablation.md", "tables/ablation.csv", "tables/ablation.tex", "figures/ablation.png"):
        assert results / name in made
    assert {results / "claims.csv", results / "claims.md", results / "tables" / "landscape.md"} <= set(made)
    assert results / "tables" / "quickstart.md" not in made  # there is no record of it
    assert "ablation: 24 of" in capsys.readouterr().out
    assert main(arguments) == 0
    assert made == {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}


def test_one_experiment_can_be_asked_for_and_shown(results, capsys):
    assert main(["tables", "ablation", "--show", "--results", str(results)]) == 0
    assert not (results / "tables" / "quickstart.md").exists()
    assert "0.416 ± 0.040" in capsys.readouterr().out


def test_a_damaged_record_is_an_error_that_names_it(results, capsys):
    path = next(results.rglob("record.json"))
    path.write_text("{")
    assert main(["tables", "--results", str(results)]) == 1
    assert str(path) in capsys.readouterr().err
