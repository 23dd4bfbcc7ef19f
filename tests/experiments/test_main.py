"""The command line."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cpu import at_most
from helpers.made_records import metrics, scores, write_record

from experiments.__main__ import COMMANDS, main
from experiments.config.compose import load_experiment, run_config

ROOT = Path(__file__).resolve().parents[2]


def test_help_is_quick_and_lists_every_command():
    with at_most(2):
        done = subprocess.run(
            [sys.executable, "-m", "experiments", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
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
    outputs = results.parent / "outputs"
    assert main(["tables", "ablation", "--show", "--results", str(results), "--outputs", str(outputs)]) == 0
    assert not outputs.exists()
    assert not (results / "tables" / "quickstart.md").exists()
    assert "0.416 ± 0.040" in capsys.readouterr().out


def test_own_runs_change_nothing_in_results(results, ablation, tmp_path, capsys):
    """Their tables and figures go to the outputs and name their sources."""
    outputs = tmp_path / "outputs"
    folders = ["--results", str(results), "--outputs", str(outputs)]

    def make():
        names = ["ablation", "multiplication"] if outputs.exists() else ["ablation"]
        assert [main([command, *names, *folders]) for command in ("tables", "figures")] == [0, 0]

    make()
    published = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert not outputs.exists()
    scored = scores(metrics(0.5, 0.2))
    write_record(outputs, run_config(ablation, "gce@0.5", 1), scored)
    write_record(outputs, run_config(load_experiment("multiplication"), "ce", 0), scored)
    path = write_record(outputs, run_config(ablation, "ce", 0), scored)  # published with another result
    make()
    assert published == {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    made = {path.relative_to(outputs).as_posix() for path in outputs.rglob("*") if "runs" not in path.parts}
    assert {"tables/ablation.md", "tables/ablation.csv", "figures/ablation.png"} <= made
    assert {"tables/multiplication.md", "figures/multiplication.png"} <= made
    text = (outputs / "tables" / "ablation.md").read_text()
    assert "from the records of `experiment=ablation` (25 published; 1 in outputs, not published)" in text
    assert f"the published ones count: {path.parent.name}." in text
    assert "(outputs, not published)" in (outputs / "tables" / "multiplication.md").read_text()
    assert "(published)" in (results / "tables" / "ablation.md").read_text()
    assert str(outputs / "tables" / "ablation.md") in capsys.readouterr().out


def test_a_table_without_records_is_no_result(tmp_path):
    assert main(["tables", "gsm8k", "--results", str(tmp_path / "r"), "--outputs", str(tmp_path / "o")]) == 0
    assert not (tmp_path / "r").exists() and (tmp_path / "o" / "tables" / "gsm8k.md").exists()


def test_a_damaged_record_is_an_error_that_names_it(results, capsys):
    path = next(results.rglob("record.json"))
    path.write_text("{")
    assert main(["tables", "--results", str(results), "--outputs", str(results.parent / "outputs")]) == 1
    assert str(path) in capsys.readouterr().err


def test_options_of_a_group_are_printed_with_meaning_and_range():
    with at_most(4):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "experiments", "options", "loss"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    assert "| torch\n" not in done.stderr and "omegaconf" in done.stderr
    assert "loss=gce_ntl_was,ntl_huber,ntl_mae,ntl_mse,ntl_was\n" in done.stdout
    meaning = "λ; 0.3 is the paper's, 0 turns the number token loss off (a finite number of at least 0)"
    assert f"  loss.weight=0.3\n      {meaning}\n" in done.stdout
    assert "  loss.encoding_options.positions=1024\n" in done.stdout


def test_options_of_every_group_are_printed(capsys):
    assert main(["options"]) == 0
    said = capsys.readouterr().out
    for key in ("model.lora.r=0", "dataset.digits=3", "train.steps=1800", "eval.beams=1", "logger.mode=auto"):
        assert f"  {key}\n" in said
    assert main(["options", "los"]) == 2
    assert "unknown group 'los'; nearest: loss" in capsys.readouterr().err
