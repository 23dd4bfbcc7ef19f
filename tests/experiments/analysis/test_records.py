"""Finding records by what their configuration says."""

import copy
import io
import json

import pytest
from helpers.made_records import add_answers, change, metrics, scores, write_record
from rich.console import Console

from experiments.__main__ import main
from experiments.analysis.records import Conflict, RecordError, arm_runs, disputed, from_where, load
from experiments.analysis.status import show
from experiments.config.compose import compose, run_config
from ntl.runs.record import predictions_bytes
from ntl.runs.run import ALGORITHM_VERSION

SCORES = scores(metrics(0.5, 0.2))


def test_arms_find_their_own_records_and_no_others(arms):
    assert list(arms["ce"].finished) == [0, 1, 2, 3, 4]
    assert arms["ce"].values("interpolate", "accuracy") == {0: 0.36, 1: 0.45, 2: 0.41, 3: 0.46, 4: 0.40}
    assert arms["ce"].values("extrapolate", "log_mae")[3] == 0.72
    assert arms["ce"].values("interpolate", "log_mae", state="untrained")[0] == 1.5
    assert arms["ce"].values("interpolate", "bleu") == {}
    assert not arms["ntl_was@2.0"].finished
    assert arms["ntl_was@2.0"].missing == (0, 1, 2, 3, 4)


def test_a_failed_run_is_neither_finished_nor_missing(arms):
    runs = arms["ntl_mae@0.3"]
    assert (list(runs.finished), list(runs.failed), runs.missing) == ([0, 1, 2], [3], (4,))
    assert runs.failed[3].reason == "FloatingPointError: loss is NaN at step 120 (ntl/training/train.py:1 in f)"


def test_a_run_belongs_to_no_experiment(results, ablation):
    # The same training by hand, with other paths, another logger and a default spelt out.
    alone = run_config(ablation, "ntl_was@0.3", 3)
    by_hand = {k: copy.deepcopy(v) for k, v in alone.items() if k not in ("arm", "arms", "seeds", "experiment")}
    by_hand |= {"paths": {"results": "/elsewhere"}, "logger": None}
    assert load(results).select(by_hand).value("trained", "interpolate", "accuracy") == 0.52
    by_hand["loss"]["weight"] = 0.31
    assert load(results).select(by_hand) is None


def test_an_experiment_finds_a_run_that_another_command_made(tmp_path, ablation):
    changed = [f"train.steps={run_config(ablation, 'ce', 0)['train']['steps'] + 1}"]
    write_record(tmp_path, compose(["experiment=ablation", "arm=ce", "seed=0", *changed]), SCORES)
    assert not arm_runs(ablation, load(tmp_path))["ce"].finished
    write_record(tmp_path, compose(["experiment=ablation", "arm=ce", "seed=0", "paths.data=x", "logger=none"]), SCORES)
    assert list(arm_runs(ablation, load(tmp_path))["ce"].finished) == [0]


def test_two_records_of_one_arm_and_seed_are_an_error_that_names_both(tmp_path, ablation):
    config = run_config(ablation, "ce", 1)
    paths = [write_record(tmp_path, config, SCORES, data=data) for data in ("one", "other")]
    with pytest.raises(Conflict, match="computed on different data") as error:
        arm_runs(ablation, load(tmp_path))
    assert all(str(path.parent) in str(error.value) for path in paths)


def test_an_old_algorithm_version_is_told_from_a_missing_run(tmp_path, ablation):
    config = run_config(ablation, "ce", 1)
    write_record(tmp_path, config, SCORES, algorithm_version=ALGORITHM_VERSION - 1)
    runs = arm_runs(ablation, load(tmp_path))["ce"]
    assert (list(runs.outdated), list(runs.finished)) == ([1], [])
    assert 1 in runs.missing
    write_record(tmp_path, config, SCORES)
    runs = arm_runs(ablation, load(tmp_path))["ce"]
    assert (list(runs.outdated), list(runs.finished)) == ([], [1])


@pytest.mark.parametrize("content", ["", "{", '{"schema": 1}', "[]", '{"a": NaN}'])
def test_a_damaged_record_is_named(results, content):
    path = next(iter(sorted(results.rglob("record.json"))))
    path.write_text(content)
    with pytest.raises(RecordError) as error:
        load(results)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("command", [["status", "ablation"], ["tables", "ablation"], ["claims"], ["rescore"]])
def test_an_edited_score_and_other_predictions_pass_no_command(results, command, capsys):
    path = next(iter(sorted(results.rglob("record.json"))))
    folders = [f"--results={results}", f"--outputs={results / 'outputs'}", f"--data={results / 'data'}"]
    add_answers(path)
    whole = path.read_text()
    path.write_text(whole.replace('"accuracy": 0.', '"accuracy": 1.', 1))
    assert whole != path.read_text() and main([*command, *folders]) == 1
    said = capsys.readouterr().err
    assert str(path) in said and "has changed since it was written" in said and "status --repair" in said
    path.write_text(whole)
    answers = path.parent / "predictions.parquet"
    answers.write_bytes(predictions_bytes([{"state": "trained", "split": "interpolate", "index": 0, "text": "8"}]))
    assert main([*command, *folders]) == 1
    assert f"{answers} is not a whole record: its sha256 is" in capsys.readouterr().err


def test_nothing_that_a_record_names_is_imported(results, ablation, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path in results.rglob("record.json"):
        config = json.loads(path.read_text())["config"]
        for node in (*config.values(), config["train"].setdefault("schedule_options", {})):
            if isinstance(node, dict):
                node["_target_"] = "planted.Thing"
        change(path, config=config)
    left = results / "runs" / "arithmetic" / "arithmetic-left" / "config.json"
    left.parent.mkdir()
    left.write_text(json.dumps({"key": "x", "config": config}))
    records = load(results)
    show(["ablation"], records, results, Console(file=io.StringIO()))
    assert len(list(records)) > 20 and list(arm_runs(ablation, records)["ce"].finished) == [0, 1, 2, 3, 4]
    assert not (tmp_path / "ran").exists()


def test_a_run_in_both_places_counts_as_published(tmp_path, ablation):
    config = run_config(ablation, "ce", 0)
    results, outputs = tmp_path / "results", tmp_path / "outputs"
    write_record(outputs, config, SCORES)
    (record,) = load(results, outputs)
    assert not record.published and from_where(arm_runs(ablation, load(results, outputs))) == "outputs, not published"
    write_record(results, config, SCORES)
    (record,) = load(results, outputs)
    assert record.published and not record.disputed and record.path.is_relative_to(results)
    write_record(outputs, config, scores(metrics(0.6, 0.2)))
    (record,) = load(results, outputs)
    assert record.published and record.disputed
    assert record.value("trained", "interpolate", "accuracy") == 0.5
    assert disputed(arm_runs(ablation, load(results, outputs))) == [record.id]
    assert not any(record.disputed for record in load(results))


def test_no_results_folder_is_no_records(tmp_path):
    assert list(load(tmp_path / "nothing")) == []
