"""How far a sweep is."""

import io
import json

import pytest
from helpers.made_records import write_record
from rich.console import Console

from experiments.analysis.records import load
from experiments.analysis.status import show, summary, survey
from experiments.config.compose import run_config
from ntl.runs.run import ALGORITHM_VERSION, Run, run_id


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "outputs"


def begin(config, outputs):
    """A run as a process holds it that has just taken it up."""
    return Run(config, run_id(config, "data"), outputs)


def states(results, outputs, ablation):
    return survey(ablation, load(results, outputs), outputs)


def test_every_arm_and_seed_has_a_state(results, outputs, ablation):
    found = states(results, outputs, ablation)
    assert list(found) == list(ablation.arms)
    assert [found["ntl_mae@0.3"][seed].name for seed in range(5)] == ["finished"] * 3 + ["failed", "missing"]
    assert "loss is NaN" in found["ntl_mae@0.3"][3].detail


def test_a_run_in_work_is_running_and_one_left_behind_interrupted(results, outputs, ablation):
    run = begin(run_config(ablation, "ntl_was@2.0", 4), outputs)
    with run.lease():
        assert states(results, outputs, ablation)["ntl_was@2.0"][4].name == "running"
        assert states(results, outputs, ablation)["ntl_was@2.0"][3].name == "missing"
    assert states(results, outputs, ablation)["ntl_was@2.0"][4].name == "interrupted"


def test_an_outdated_run_is_told_from_a_missing_one(results, outputs, ablation):
    write_record(results, run_config(ablation, "gce@2", 0), {}, algorithm_version=ALGORITHM_VERSION - 1)
    assert states(results, outputs, ablation)["gce@2"][0].name == "outdated"


def test_a_work_folder_of_unknown_content_is_no_harm(results, outputs, ablation):
    for name, content in (("a", "{"), ("b", json.dumps({"dataset": {"name": "x"}}))):
        (outputs / "runs" / "x" / name).mkdir(parents=True)
        (outputs / "runs" / "x" / name / "config.json").write_text(content)
    assert states(results, outputs, ablation)["ce"][0].name == "finished"


def test_totals_reasons_and_the_commands_for_the_rest(results, outputs, ablation):
    lines = summary(ablation, states(results, outputs, ablation))
    total = len(ablation.arms) * 5
    assert lines[0] == f"ablation: 24 of {total} runs finished, 1 failed, {total - 25} missing"
    assert lines[1].startswith("  failed: ntl_mae@0.3, seed 3: FloatingPointError: loss is NaN at step 120")
    assert lines[2] == "  to run the rest: python run.py -m experiment=ablation"
    assert lines[3] == "  to run the failed again: python run.py -m experiment=ablation arm=ntl_mae@0.3 retry=true"


def test_runs_that_are_not_published_are_counted_apart(results, outputs, ablation):
    write_record(outputs, run_config(ablation, "gce@2", 0), {})
    lines = summary(ablation, states(results, outputs, ablation))
    assert lines[0].startswith(f"ablation: 25 of {len(ablation.arms) * 5} runs finished (1 in outputs, not published),")


def test_plain_lines_without_a_terminal_and_a_table_with_one(results, outputs):
    shown = {}
    for terminal in (False, True):
        file = io.StringIO()
        show(["ablation"], load(results), outputs, Console(file=file, force_terminal=terminal, width=120))
        shown[terminal] = file.getvalue()
    assert "ablation  ntl_mae@0.3  finished 0,1,2  failed 3  missing 4\n" in shown[False]
    assert "\x1b[" not in shown[False]
    assert "seed 4" in shown[True]
    assert "\x1b[" in shown[True]
