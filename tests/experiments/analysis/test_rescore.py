"""Rescoring: metrics of recorded runs from their predictions, and metrics that came after the run."""

import hashlib
import json
import shutil

import pytest
from helpers.copied_tree import command as run
from helpers.copied_tree import copy_tree, documented_files
from helpers.made_records import change, write_record

from data_prep.multiplication import Multiplication
from experiments.__main__ import main
from experiments.analysis.records import Record, load
from experiments.config.compose import load_experiment, run_config
from ntl.evaluation.answer import Answers
from ntl.evaluation.rescore import compare, rescore
from ntl.evaluation.score import trivial
from ntl.runs import record as records

SPLITS = ("validation", "interpolate", "extrapolate")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    sizes = {"train_size": 60, "validation_size": 4, "test_size": 5}
    dataset = Multiplication(name="multiplication", digits=2, extrapolation_digits=3, **sizes)
    return dataset.prepare(tmp_path_factory.mktemp("data"), progress=False)


@pytest.fixture
def data(prepared):
    return prepared.folder.parents[1]


@pytest.fixture
def write(prepared, tmp_path):
    """Write a run that answered the first `examples` questions of each split: some right, some wrong, one silent."""

    def write(examples=None, seed=0, **changes):
        rows = {split: prepared.rows(split)[:examples] for split in SPLITS}
        texts = {
            split: ["?", *(row["answer"] for row in rows[split][1:-1]), "-12"][: len(rows[split])] for split in SPLITS
        }
        given = {split: Answers(texts[split], [False] * len(texts[split]), []) for split in SPLITS}
        constants, fill = trivial(prepared.rows("train"), rows, "number")
        scored = rescore({"trained": given} | constants, rows, kind="number", fill=fill)
        scored["trained"]["interpolate"]["all"]["token_accuracy"] = 0.5  # which predictions do not tell
        for name, value in changes.items():
            if value is None:
                del scored["trained"]["interpolate"]["all"][name]
            else:
                scored["trained"]["interpolate"]["all"][name] = value
        config = run_config(load_experiment("multiplication"), "ce", seed)
        config = {**config, "eval": {**config["eval"], "examples": examples}}
        path = write_record(tmp_path / "outputs", config, scored, data=prepared.fingerprint)
        answers = [
            {"state": "trained", "split": split, "index": index, "text": text}
            for split in SPLITS
            for index, text in enumerate(texts[split])
        ]
        put(path, answers)
        return path

    return write


def put(path, answers, seal=True):
    """Write a record's predictions; sealed, the record says that they are its own."""
    content = records.predictions_bytes(answers)
    (path.parent / records.PREDICTIONS).write_bytes(content)
    if seal:
        change(path, files={records.PREDICTIONS: hashlib.sha256(content).hexdigest()})


def changed(path, row, **changes):
    answers = records.read_predictions(path.parent).to_dict("records")
    answers[row] |= changes
    return answers


@pytest.fixture
def command(tmp_path, data, capsys):
    """`python -m experiments rescore`; → exit code, output, errors."""

    def command(*names, data=data):
        folders = {"results": tmp_path / "results", "outputs": tmp_path / "outputs", "data": data}
        code = main(["rescore", *names, *(f"--{name}={folder}" for name, folder in folders.items())])
        return code, *capsys.readouterr()

    return command


@pytest.mark.parametrize("examples", [None, 3])
def test_a_record_is_what_its_predictions_give(write, command, examples):
    path = write(examples)
    before = sorted(path.parent.iterdir())
    assert command() == (0, "1 without differences, 0 skipped, 0 not confirmed\n", "")
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize(("off", "code"), [(1e-12, 0), (1e-6, 1)])
def test_differences_beyond_rounding_are_reported(write, command, off, code):
    path = write(accuracy=0.9 + off)
    found, _, err = command()
    assert found == code
    assert ("trained.interpolate.all.accuracy: the record says 0.90000" in err) == bool(code)
    assert not (path.parent / "rescored.json").exists()


def test_another_answer_is_reported(write, command):
    path = write()
    put(path, changed(path, 1, text="-7"))
    code, out, err = command()
    assert code == 1 and f"not confirmed: {path.parent.name}: trained.extrapolate.all.mae: the record says" in err
    assert "0 without differences, 0 skipped, 1 not confirmed" in out


@pytest.mark.parametrize("examples", [None, 3])
def test_predictions_that_are_not_the_records_own_are_reported(write, command, examples):
    path = write(examples)
    put(path, changed(path, 1, text="-7"), seal=False)
    code, _, err = command()
    assert code == 1 and "predictions.parquet is not a whole record: its sha256 is" in err
    (path.parent / records.PREDICTIONS).unlink()
    code, _, err = command()
    assert code == 1 and "predictions.parquet is not a whole record: it is missing" in err


def test_answers_to_other_questions_are_reported(write, command):
    path = write()
    put(path, records.read_predictions(path.parent).to_dict("records")[:-1])
    code, _, err = command()
    assert code == 1 and "answers for trained, validation, and" in err
    put(path, changed(path, 0, index=9))
    code, _, err = command()
    assert code == 1 and "the answers for trained, extrapolate are not numbered 0 to" in err


def test_without_its_data_a_record_is_skipped(write, command, tmp_path):
    path = write()
    code, out, _ = command(data=tmp_path / "empty")
    assert code == 0 and f"skipped: {path.parent.name}: its data (multiplication, fingerprint" in out
    assert "python -m data_prep multiplication" in out


def test_damaged_data_are_reported(write, command, data, tmp_path):
    write()
    shutil.copytree(data, tmp_path / "data")
    next((tmp_path / "data").glob("*/*/interpolate.jsonl")).write_text("")
    code, _, err = command(data=tmp_path / "data")
    assert code == 1 and "the hash does not match" in err


def test_metrics_that_a_record_lacks_are_written_beside_it_and_read(write, command):
    path = write(rmse=None, pearson=None)
    before = path.read_bytes()
    code, out, _ = command()
    assert code == 0 and f"2 metrics that the record lacks: {path.parent / 'rescored.json'}" in out
    assert path.read_bytes() == before
    written = json.loads((path.parent / "rescored.json").read_bytes())["metrics"]
    assert set(written["trained"]["interpolate"]["all"]) == {"rmse", "pearson"}
    (record,) = load(None, path.parents[3])
    value = record.value("trained", "interpolate", "rmse")
    assert value == written["trained"]["interpolate"]["all"]["rmse"] > 0
    assert record.value("trained", "interpolate", "nonsense") is None
    write(pearson=None)  # another record in the same folder: what was computed for the first no longer counts
    assert Record(path, records.read_record(path)).value("trained", "interpolate", "pearson") is None
    write()
    assert command()[0] == 0
    assert not (path.parent / "rescored.json").exists()


@pytest.mark.parametrize("metrics", [None, {"trained": {"interpolate": {"all": {"new": "high"}}}}])
def test_a_damaged_file_of_metrics_is_named(write, metrics):
    path = write()
    digest = json.loads(path.read_bytes())["digest"]
    (path.parent / "rescored.json").write_bytes(records.to_json(records.sealed({"record": digest, "metrics": metrics})))
    (record,) = load(None, path.parents[3])
    with pytest.raises(records.RecordError, match=r"rescored.json .* remove it and give the command"):
        record.value("trained", "interpolate", "new")


def test_metrics_edited_after_they_were_computed_are_named(write, command):
    path = write(rmse=None)
    assert command()[0] == 0
    beside = path.parent / "rescored.json"
    value = json.loads(beside.read_text())["metrics"]["trained"]["interpolate"]["all"]["rmse"]
    beside.write_text(beside.read_text().replace(str(value), "0.0"))
    (record,) = load(None, path.parents[3])
    with pytest.raises(records.RecordError, match="its content has changed since it was written"):
        record.value("trained", "interpolate", "rmse")


def test_published_records_take_their_later_metrics_along(write, command, tmp_path):
    path = write(rmse=None)
    assert command()[0] == 0
    folders = [f"--results={tmp_path / 'results'}", f"--outputs={tmp_path / 'outputs'}"]
    assert main(["publish", path.parent.name, *folders]) == 0
    (record,) = load(tmp_path / "results")
    assert record.value("trained", "interpolate", "rmse") > 0


def test_records_are_named_by_experiment_or_run(write, command):
    one, _ = write(), write(seed=1)
    assert "1 without differences" in command(one.parent.name)[1]
    assert "2 without differences" in command("multiplication", one.parent.name)[1]
    assert "0 without differences" in command("ablation")[1]
    code, _, err = command("multiplicaton")
    assert code == 2 and "unknown experiment or run 'multiplicaton'; nearest: multiplication" in err


def test_undefined_and_absent_metrics_are_compared():
    recorded = {"trained": {"test": {"all": {"mae": None, "r2": 1.0, "bleu": 0.5, "perplexity": 2.0, "gone": 1.0}}}}
    differences, lacking = compare(recorded, {"trained": {"test": {"all": {"mae": None, "r2": None, "rmse": 0.0}}}})
    assert [difference[3:] for difference in differences] == [("r2", 1.0, None), ("bleu", 0.5, None)]
    assert str(differences[0]) == "trained.test.all.r2: the record says 1.0, its predictions give no value"
    assert lacking == {"trained": {"test": {"all": {"rmse": 0.0}}}}


EXPERIMENT = """
# @package _global_
experiment: tiny
arms:
  ce: [loss=ce, dataset=multiplication, dataset.digits=2, dataset.extrapolation_digits=3, dataset.train_size=60,
    dataset.validation_size=4, dataset.test_size=5, model.vocab_size=260, model.architecture.d_model=16,
    model.architecture.d_kv=8, model.architecture.d_ff=32, model.architecture.num_layers=1,
    model.architecture.num_decoder_layers=1, model.architecture.num_heads=2, train.steps=6, train.batch_size=8,
    train.eval_every=3, train.warmup_steps=1, eval.margin=2]
"""
TABLE = """
from experiments.analysis.table import Table
TABLES = (Table("Tiny", ("interpolate",), {metrics}, "ce"),)
"""


@pytest.mark.slow
def test_a_metric_added_after_a_run_is_in_its_table(tmp_path):
    """In a copy of the repository: an experiment is run, a file with a metric is added, the run is scored again."""
    copy_tree(tmp_path)
    (tmp_path / "conf" / "experiment" / "tiny.yaml").write_text(EXPERIMENT)
    table = tmp_path / "experiments" / "tiny.py"
    table.write_text(TABLE.format(metrics=("accuracy",)))

    run(tmp_path, "run.py", "-m", "experiment=tiny", "logger=none")
    assert run(tmp_path, "-m", "experiments", "rescore") == "1 without differences, 0 skipped, 0 not confirmed\n"
    (path,) = tmp_path.glob("outputs/runs/multiplication/*/record.json")
    before = path.read_bytes()
    (tmp_path / "ntl" / "evaluation" / "metrics" / "within.py").write_text(
        documented_files()["ntl/evaluation/metrics/within.py"]
    )
    table.write_text(TABLE.format(metrics=("accuracy", "within_one_percent")))
    said = run(tmp_path, "-m", "experiments", "rescore", "tiny")
    # Five states; three splits; with and without answers that hold no number.
    assert said.partition(":")[0] == "30 metrics that the record lacks"
    assert path.read_bytes() == before
    run(tmp_path, "-m", "experiments", "tables", "tiny")
    shown = (tmp_path / "outputs" / "tables" / "tiny.md").read_text()
    assert "Within 1 % ↑" in shown
    value = json.loads((path.parent / "rescored.json").read_bytes())["metrics"]["mean"]["interpolate"]["all"]
    assert f"{value['within_one_percent']:.3f}" in shown

    answers = records.read_predictions(path.parent).to_dict("records")
    chosen = next(row for row in answers if row["state"] == "trained")
    chosen["text"] = "123456789"
    put(path, answers)
    said = run(tmp_path, "-m", "experiments", "rescore", "tiny", code=1)
    assert f"trained.{chosen['split']}.all.mae" in said
