"""The command line from end to end, at the smallest scale: a run, its record, sweeps, failures, interruption."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from ntl.evaluation import metrics
from ntl.runs import run as runs

ROOT = Path(__file__).resolve().parents[1]
DATA = [
    "dataset=multiplication",
    "dataset.digits=2",
    "dataset.extrapolation_digits=3",
    "dataset.train_size=60",
    "dataset.validation_size=4",
    "dataset.test_size=5",
]
SMALL = [
    *DATA,
    "model=t5_nano",
    "model.vocab_size=260",
    *(f"model.architecture.{key}={value}" for key, value in {"d_model": 16, "d_kv": 8, "d_ff": 32}.items()),
    *(f"model.architecture.{key}=1" for key in ("num_layers", "num_decoder_layers")),
    "model.architecture.num_heads=2",
    "train.steps=6",
    "train.batch_size=8",
    "train.eval_every=3",
    "train.warmup_steps=1",
    "eval.beams=1",
    "eval.margin=2",
    "logger=none",
]
GPT2 = ["model=gpt2_nano", *(a for a in SMALL if not a.startswith(("model=", "model.architecture."))),
        "model.architecture.n_embd=16", "model.architecture.n_layer=1", "model.architecture.n_head=2"]  # fmt: skip
ARMS = ['+arms.plain=["loss=ce"]', '+arms.number=["loss=ntl_was","loss.weight=0.5"]']
FAILS = '+arms.fails=["loss=ntl_was","train.learning_rate=1e30"]'


def places(folder):
    return [f"paths.{name}={folder / name}" for name in ("data", "outputs", "results")]


@pytest.fixture
def command(monkeypatch):
    """Give a command line to run.py, in a process of its own; → exit code, output, errors."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def command(*arguments):
        line = [sys.executable, "run.py", *map(str, arguments)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return command


def process(*arguments, **options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "run.py", *map(str, arguments)], cwd=ROOT, **streams, **options)


def records(folder):
    """Records by the loss and seed that they are of."""
    found = [runs.read_record(path.parent) for path in folder.glob("outputs/runs/*/*/record.json")]
    return {(record["config"]["loss"]["name"], record["seed"]): record for record in found}


def contents(folder):
    """The files beside every record: what must not change once a run is recorded."""
    recorded = [path.parent for path in folder.glob("outputs/runs/*/*/record.json")]
    return {path: path.read_bytes() for run in recorded for path in run.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run, made by a process of its own."""
    folder = tmp_path_factory.mktemp("done")
    started = process(*SMALL, "loss=ntl_was", *places(folder))
    said, _ = started.communicate()
    assert started.returncode == 0, said
    return folder


@pytest.fixture
def record(done):
    (record,) = records(done).values()
    return record


def test_a_run_ends_with_a_record(done, record):
    assert record["status"] == "finished" and record["reason"] is None
    assert record["id"].startswith("multiplication-t5_nano-ntl_was-s0-")
    assert set(record["metrics"]) == {"untrained", "trained", "mean", "median", "most_frequent", "ceiling"}
    for state, splits in record["metrics"].items():
        assert set(splits) == {"validation", "interpolate", "extrapolate"}
        for groups in splits.values():
            assert groups["all"]["count"] > 0
            assert ("token_accuracy" in groups["all"]) == (state in ("untrained", "trained"))
    assert record["timings"]["train_seconds"] > 0 and record["timings"]["peak_memory_mib"] > 50
    assert record["model"]["parameters"] > 1000 and record["model"]["best_step"] in (3, 6)
    assert record["config"]["loss"]["weight"] == 0.3
    labels = record["data"]["training_labels"]
    assert 0 < labels["numbers"] < labels["all"] == pytest.approx(labels["per_number"] * labels["numbers"])
    assert {s["all"]["accuracy"] for s in record["metrics"]["ceiling"].values()} == {1.0}  # digits lose nothing
    assert any("pearson" in note and "constant" in note for note in record["notes"])


def test_the_record_tells_no_place(done, record):
    text = json.dumps(record)
    assert str(done) not in text and str(ROOT) not in text and os.uname().nodename not in text


def test_the_history_holds_every_part_by_step(done, record):
    (path,) = done.glob("outputs/runs/*/*/history.parquet")
    history = pd.read_parquet(path)
    assert history["step"].tolist() == [3, 6]
    assert history[["loss", "ce", "ntl", "eval_ce", "eval_ntl"]].notna().all(axis=None)
    assert record["model"]["best_step"] == history["step"][history["eval_ce"].idxmin()]


def test_metrics_can_be_computed_again_from_the_predictions(done, record):
    (path,) = done.glob("outputs/runs/*/*/predictions.parquet")
    predictions = pd.read_parquet(path)
    assert set(predictions["state"]) == {"untrained", "trained"}
    (data,) = done.glob("data/multiplication/*/manifest.json")
    answers = {
        split: [json.loads(line)["answer"] for line in (data.parent / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation", "interpolate", "extrapolate")
    }
    from ntl.evaluation.baselines import trivial_answers

    fill = trivial_answers(answers["train"])["median"]
    for (state, split), rows in predictions.groupby(["state", "split"]):
        assert rows["index"].tolist() == list(range(len(answers[split])))
        again = metrics.score(
            rows["text"].tolist(), answers[split], kind="number", fill=fill, truncated=rows["truncated"].tolist()
        ).metrics["all"]
        for name, value in again.items():
            assert record["metrics"][state][split]["all"][name] == pytest.approx(value), (state, split, name)


def test_what_was_used_on_the_way_is_gone(done):
    left = {path.name for path in done.glob("outputs/runs/*/*/*")}
    assert "model" in left and "checkpoints" not in left


def test_the_same_command_skips_what_is_finished(done, command):
    before = contents(done)
    code, out, err = command(*SMALL, "loss=ntl_was", *places(done))
    assert code == 0 and "skip, it is finished" in out + err
    assert contents(done) == before


def test_force_trains_again_and_a_published_record_is_named(done, record, command, tmp_path):
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    (folder,) = tmp_path.glob("outputs/runs/*/*")
    published = tmp_path / "results" / "runs" / folder.parent.name / folder.name
    published.mkdir(parents=True)
    shutil.copy(folder / "record.json", published)
    before = (folder / "record.json").read_bytes()
    code, out, err = command(*SMALL, "loss=ntl_was", "force=true", *places(tmp_path))
    assert code == 0 and ": again" in out + err and f"a published record exists in {published}" in out + err
    assert (folder / "record-1.json").read_bytes() == before
    again = runs.read_record(folder)
    assert again["metrics"] == record["metrics"] and again["timings"] != record["timings"]
    shutil.rmtree(folder)  # the published record alone is no reason to skip the run
    code, out, err = command(*SMALL, "loss=ntl_was", *places(tmp_path))
    assert code == 0 and ": start" in out + err and runs.read_record(folder)["metrics"] == record["metrics"]
    assert [path.name for path in published.iterdir()] == ["record.json"]


def test_options_that_cannot_change_a_result_name_the_same_run(done, command):
    code, out, err = command(*SMALL, "loss=ntl_was", "train.log_every=1", "eval.batch_size=3", *places(done))
    assert code == 0 and "skip, it is finished" in out + err


def test_another_process_computes_the_same(done, record, command, tmp_path):
    code, out, err = command(*SMALL, "loss=ntl_was", *places(tmp_path))
    assert code == 0, out + err
    (again,) = records(tmp_path).values()
    for part in ("id", "metrics", "files", "data", "model"):
        assert again[part] == record[part]
    assert {"encoder.block.0", "decoder.block.0", "shared.weight"} <= set(record["model"]["initial_weights"])


def test_answering_while_training_adds_curves_and_changes_nothing_else(done, record, command, tmp_path):
    code, out, err = command(*SMALL, "loss=ntl_was", "train.answer_examples=3", *places(tmp_path))
    assert code == 0, out + err
    (again,) = records(tmp_path).values()
    assert (again["id"], again["metrics"]) == (record["id"], record["metrics"])
    assert again["files"]["predictions.parquet"] == record["files"]["predictions.parquet"]
    before, after = (pd.read_parquet(*folder.glob("outputs/runs/*/*/history.parquet")) for folder in (done, tmp_path))
    assert after[before.columns].equals(before)
    added = after.drop(columns=before.columns)
    assert {"eval_accuracy", "eval_nll", "eval_digit_error"} <= set(added)
    assert added[["eval_accuracy", "eval_nll"]].notna().all(axis=None)


def test_curves_of_answers_by_group_add_columns_and_change_nothing_else(done, record, command, tmp_path):
    grouped = ("train.answer_examples=40", "train.answer_groups=digits")
    code, out, err = command(*SMALL, "loss=ntl_was", *grouped, *places(tmp_path))
    assert code == 0, out + err
    (again,) = records(tmp_path).values()
    assert (again["id"], again["metrics"]) == (record["id"], record["metrics"])
    assert again["files"]["predictions.parquet"] == record["files"]["predictions.parquet"]
    curves = pd.read_parquet(*tmp_path.glob("outputs/runs/*/*/history.parquet"))
    (data,) = tmp_path.glob("data/multiplication/*/validation.jsonl")
    cells = {json.loads(line)["digits"] for line in data.read_text().splitlines()[:40]}
    measured = curves[[f"eval_{name}/{cell}" for name in ("mape_filled", "nll") for cell in cells]]
    assert measured.notna().sum().nunique() == 1 and measured.notna().any(axis=None)
    shares = curves[[f"eval_accuracy/{cell}" for cell in cells]].dropna()
    assert len(shares) and (shares.min(axis=1) <= curves.loc[shares.index, "eval_accuracy"]).all()


def test_groups_that_rows_do_not_name_stop_the_run_before_training(command, tmp_path):
    wrong = ("train.answer_examples=4", "train.answer_groups=modul")
    code, _, err = command(*SMALL, *wrong, *places(tmp_path))
    assert code != 0 and "train.answer_groups" in err and "'modul'" in err and "digits" in err


def test_a_trained_model_answers(done, record, command):
    question = "What is 3 * 4?"
    code, by_id, _ = command("predict", f"run={record['id']}", f"paths.outputs={done / 'outputs'}", question, "12 * 3")
    assert code == 0 and len(by_id.splitlines()) == 2
    (folder,) = done.glob("outputs/runs/*/*")
    assert command("predict", f"run={folder}", question, "12 * 3")[:2] == (0, by_id)
    assert command("predict", f"run={folder / 'model'}", question, "12 * 3")[:2] == (0, by_id)
    (path,) = done.glob("outputs/runs/*/*/predictions.parquet")
    told = pd.read_parquet(path).query("state == 'trained' and split == 'interpolate'")["text"].tolist()
    (data,) = done.glob("data/multiplication/*/interpolate.jsonl")
    asked = [json.loads(line)["question"] for line in data.read_text().splitlines()]
    code, answers, _ = command("predict", f"run={folder}", *asked)
    assert answers.splitlines() == told


def test_questions_to_a_model_that_is_not_there(done, record, command):
    outputs = f"paths.outputs={done / 'outputs'}"
    wrong = record["id"][:-1] + "x"
    code, out, err = command("predict", f"run={wrong}", outputs, "1")
    assert code == 1 and out == "" and f"error: unknown run '{wrong}'; nearest: {record['id']}" in err
    code, _, err = command("predict", f"run={done / 'data'}", "1")
    assert code == 1 and "holds no trained model" in err
    assert command("predict", outputs, "1")[0] == command("predict", f"run={wrong}")[0] == 1


def test_the_other_family_runs_too(tmp_path, command):
    code, out, err = command(*GPT2, "loss=ntl_mse", "model.loss_on=all", "train.accumulate=2", *places(tmp_path))
    assert code == 0, out + err
    assert records(tmp_path)["ntl_mse", 0]["status"] == "finished"


def test_a_run_that_fails_is_recorded_and_run_again_on_request(tmp_path, command, record_property):
    failing = [*SMALL, "loss=ce", "train.learning_rate=1e30", *places(tmp_path)]
    code, out, err = command(*failing)
    assert code == 1
    told = err.splitlines()[-1]
    assert re.fullmatch(r"error: the (validation )?loss became nan by step \d; a lower train\.learning_rate, .*", told)
    assert "Traceback" not in err
    (record,) = records(tmp_path).values()
    assert record["status"] == "failed" and record["reason"]["type"] == "NotFinite"
    assert record["reason"]["message"] == told.removeprefix("error: ") and not record["metrics"]
    code, out, err = command(*failing)
    assert re.search(r"skip, it is failed in \S+; retry=true runs it again", out + err)
    code, out, err = command(*failing, "retry=true")
    assert code == 1 and ": retry" in out + err and "had failed before; tried again" in out + err
    assert len(records(tmp_path)) == 1
    record_property("faults", 2)


def test_a_value_that_is_adjusted_is_told_and_names_the_run(done, command):
    """Six steps are validated every three, whether 3 or 4 is given."""
    code, out, err = command(*SMALL, "loss=ntl_was", "train.eval_every=4", *places(done))
    assert code == 0 and "skip, it is finished" in out + err
    assert "train.eval_every: got 4, 3 is used: it divides train.steps=6" in out + err


BAD = [
    (["loss=ntl_was", "loss.weight=nan"], r"loss\.weight: got nan, expected a finite number of at least 0"),
    (["loss=ntl_wass"], r"unknown loss 'ntl_wass'; nearest: ntl_was, .*"),
    (["eval.beams=0"], r"eval\.beams: got 0, expected an integer of at least 1"),
    (["loss=ce,ntl_was"], r"got several values of loss; add -m to run them all"),
    (
        ["loss=xval", "train.loss_implementation=linear"],
        r"train\.loss_implementation: got 'linear' for XVal, expected a loss with more than one implementation .*",
    ),
    (["-m", "loss=ce", "train.steps=6,0"], r"train\.steps: got 0, expected an integer of at least 1"),
    (["hydra.jobs=3"], r"Key 'jobs' not in 'HydraConf' .*"),
    (
        ["model=t5_small", *DATA, "logger=none"],
        r"model 't5_small' could not be read from 'google-t5/t5-small' \(.*\); give a local folder in the hub's layout "
        r"by model\.path=<folder>, or train the same size from scratch by model\.init=scratch model\.tokenizer=bpe",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda value: " ".join(value[:2]) * isinstance(value, list))
def test_what_cannot_be_run_leaves_nothing_behind(arguments, said, tmp_path, command, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    base = [] if "model=t5_small" in arguments else SMALL
    code, out, err = command(*base, *arguments, *places(tmp_path))
    assert code == 1
    assert out == "" and re.fullmatch(f"error: {said}", err.strip())
    assert list(tmp_path.iterdir()) == []


def test_several_processes_that_cannot_meet_are_refused(tmp_path):
    """tests/test_distributed.py has those that can."""
    started = process(*places(tmp_path), env=os.environ | {"WORLD_SIZE": "2"})
    said, _ = started.communicate()
    assert started.returncode == 1
    assert "WORLD_SIZE: got 2" in said and "MASTER_ADDR" in said and "torchrun" in said
    assert not any(tmp_path.iterdir())


def test_a_changed_data_file_stops_the_run(tmp_path, command, record_property):
    from experiments.config import compose as configuration
    from experiments.config import instantiate as parts
    from ntl.files import file_sha256

    config = configuration.compose([*SMALL, *places(tmp_path)])
    folder = parts.instantiate(config).dataset.prepare(tmp_path / "data", progress=False).folder
    path = folder / "interpolate.jsonl"
    expected = file_sha256(path)
    path.write_text(path.read_text().replace("What", "what", 1))
    before = sorted(tmp_path.glob("data/**/*"))
    code, _, err = command(*SMALL, "loss=ce", *places(tmp_path))
    assert code == 1
    assert err.splitlines()[-1] == (
        f"error: {path}: the hash does not match; got sha256 {file_sha256(path)}, expected {expected} (manifest.json). "
        f"The file has changed since it was prepared. Remove the folder {folder} to have it prepared anew, or put the "
        "original file back."
    )
    assert "Traceback" not in err
    assert not (tmp_path / "outputs" / "runs").exists()
    assert sorted(tmp_path.glob("data/**/*")) == before
    record_property("faults", 1)


def test_questions_too_long_for_the_model_fail_before_training(tmp_path, command):
    code, _, err = command(*GPT2, "model.architecture.n_positions=16", *places(tmp_path))
    assert code == 1 and "Traceback" not in err
    assert "the split 'train' needs" in err.splitlines()[-1] and "the model has 16" in err.splitlines()[-1]
    (record,) = records(tmp_path).values()
    assert record["status"] == "failed" and record["reason"]["type"] == "TooLong"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_records_every_arm_though_one_fails(launcher, tmp_path, record_property):
    seeds = ["seeds=[0,1]", "arm_seeds=[{arms: [fails], seeds: [1]}]"]
    sweep = ["-m", *SMALL, *ARMS, FAILS, *seeds, f"hydra/launcher={launcher}", *places(tmp_path)]
    started = process(*sweep)
    said, _ = started.communicate()
    assert started.returncode == 1, said
    states = {}
    for path in tmp_path.glob("outputs/runs/*/*/record.json"):
        record = runs.read_record(path.parent)
        arm = record["config"]["loss"]["name"], record["config"]["train"]["learning_rate"]
        states.setdefault(arm, []).append((record["seed"], record["status"]))
    assert {arm: sorted(of_seeds) for arm, of_seeds in states.items()} == {
        ("ce", 1e-3): [(0, "finished"), (1, "finished")],
        ("ntl_was", 1e-3): [(0, "finished"), (1, "finished")],
        ("ntl_was", 1e30): [(1, "failed")],
    }
    before = contents(tmp_path)
    again = process(*sweep)
    said, _ = again.communicate()
    assert again.returncode == 0 and said.count("skip, it is finished") == 4 and said.count("skip, it is failed") == 1
    assert contents(tmp_path) == before
    record_property("faults", 1)


def wait_for(started, condition):
    while not condition():
        if started.poll() is not None:
            raise AssertionError(started.communicate()[0])
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # SIGKILL: tests/test_sweeps.py
def test_a_sweep_that_is_broken_off_goes_on_with_the_same_command(number, tmp_path, tmp_path_factory, record_property):
    longer = [a for a in SMALL if not a.startswith(("train.steps", "train.eval_every"))]
    longer += ["train.steps=600", "train.eval_every=50", "model.architecture.dropout_rate=0.1", "train.accumulate=2"]
    sweep = ["-m", *longer, *ARMS, "seeds=[0]"]
    started = process(*sweep, *places(tmp_path))
    wait_for(started, lambda: len(records(tmp_path)) == 1)
    kept = contents(tmp_path)
    (first,) = records(tmp_path).values()

    def second_has_a_checkpoint():
        sealed = tmp_path.glob("outputs/runs/*/*/checkpoints/checkpoint-*/sealed.json")
        return any(first["id"] not in path.parts for path in sealed)

    wait_for(started, second_has_a_checkpoint)
    started.send_signal(number)
    said, _ = started.communicate()
    assert started.returncode == 130, said
    assert "stopped: stopped at step" in said and "the same command goes on from here" in said
    assert "Traceback" not in said
    assert contents(tmp_path) == kept
    again = process(*sweep, *places(tmp_path))
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert "skip, it is finished" in said and ": resume" in said and "going on from step" in said
    found = records(tmp_path)
    assert {key: record["status"] for key, record in found.items()} == {
        ("ce", 0): "finished",
        ("ntl_was", 0): "finished",
    }
    assert {path: content for path, content in contents(tmp_path).items() if path in kept} == kept
    whole = tmp_path_factory.mktemp("whole")
    straight = process(*longer, "loss=ntl_was", "loss.weight=0.5", *places(whole))
    straight.communicate()
    expected = records(whole)["ntl_was", 0]
    assert found["ntl_was", 0]["id"] == expected["id"]
    assert found["ntl_was", 0]["metrics"] == expected["metrics"]
    assert found["ntl_was", 0]["files"]["predictions.parquet"] == expected["files"]["predictions.parquet"]
    record_property("faults", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_from", "beyond"), [("train", 2), ("all", 0)])
def test_references_beyond_the_limit_are_in_the_record(command, tmp_path, limit_from, beyond):
    for split, answers in {"train": ["1", "2"] * 20, "test": ["9" * 30, "8" * 30, "1"]}.items():
        rows = ({"question": f"{split} {n}?", "answer": answer} for n, answer in enumerate(answers))
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["dataset=custom", *(f"dataset.{split}={tmp_path / split}.jsonl" for split in ("train", "test"))]
    rest = [argument for argument in SMALL if argument not in DATA]
    code, _, errors = command(*data, *rest, f"eval.limit_from={limit_from}", *places(tmp_path))
    assert code == 0, errors
    (record,) = records(tmp_path).values()
    assert record["data"]["references_beyond_limit"] == {"validation": 0, "test": beyond}
    noted = [note for note in record["notes"] if note.startswith("test: 2 of 3 reference answers have more tokens")]
    assert len(noted) == bool(beyond)
