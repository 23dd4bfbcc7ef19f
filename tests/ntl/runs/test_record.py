"""Records: whole or absent, the same bytes for the same content, and read with suspicion."""

import io
import json
import math
import os
import subprocess

import numpy as np
import pandas as pd
import pytest

from ntl.runs import record as records
from ntl.runs.record import RecordError, blank, history_bytes, predictions_bytes, read_record, sealed, to_json


def record(**changes):
    whole = blank(
        id="arithmetic-t5_nano-ce-s0-12345678", status="finished",
        metrics={"trained": {"interpolate": {"all": {"accuracy": 0.5, "mae": None, "places": [1, 2]}}}},
    )  # fmt: skip
    return sealed(whole | changes)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / record()["id"]
    path.mkdir()
    return path


def put(folder, content: bytes):
    (folder / "record.json").write_bytes(content)
    return folder


def test_json_is_canonical():
    content = to_json(
        {"b": np.float32(0.5), "a": [math.nan, -math.inf, np.int64(3), np.array([1.5, np.nan])], "ü": True}
    )
    assert json.loads(content) == {"b": 0.5, "a": [None, None, 3, [1.5, None]], "ü": True}
    assert content == to_json({"ü": True, "a": [None, None, 3, [1.5, None]], "b": 0.5})
    assert content.endswith(b"\n")
    assert content.index(b'"a"') < content.index(b'"b"')


def test_json_refuses_what_it_cannot_hold():
    with pytest.raises(TypeError, match="object"):
        to_json({"a": object()})


def test_what_was_written_is_read(folder):
    assert read_record(put(folder, to_json(record()))) == record()
    assert read_record(folder / "record.json") == record()


def without(name):
    return {key: value for key, value in record().items() if key != name}


DAMAGED = {
    "empty": b"",
    "cut": to_json(record())[:-40],
    "binary": b"\xff\x00" * 20,
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "not a number": to_json(record()).replace(b"0.5", b"NaN"),
    "another schema": to_json(record(schema=1)),
    "no metrics": to_json(without("metrics")),
    "metrics of the wrong type": to_json(record(metrics=[])),
    "metrics too shallow": to_json(record(metrics={"trained": {"interpolate": 0.5}})),
    "text for a number": to_json(record(metrics={"trained": {"x": {"all": {"accuracy": "0.5"}}}})),
    "another run": to_json(record(id="arithmetic-t5_nano-ce-s1-12345678")),
    "unknown status": to_json(record(status="done")),
    "no reason": to_json(record(status="failed")),
    "a file of another name": to_json(record(files={"../../notes.txt": "0"})),
    "a file that is not there": to_json(record(files={"history.parquet": "0"})),
    "an edited score": to_json(record() | {"metrics": {"trained": {"interpolate": {"all": {"accuracy": 0.9}}}}}),
    "a field of its own": to_json(record() | {"later": 1}),
    "a digest left out": to_json(without("digest") | {"digest": ""}),
    "an infinite time": to_json(record()).replace(b'"timings": {}', b'"timings": {"train_seconds": 1e999}'),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_named(folder, content, record_property):
    with pytest.raises(RecordError) as error:
        read_record(put(folder, content))
    assert str(folder / "record.json") in str(error.value) or "history.parquet" in str(error.value)
    assert "start the run again" in str(error.value)
    assert error.value.path.parent == folder
    record_property("faults", 1)


def test_no_byte_less_is_a_whole_record(folder, record_property):
    content = to_json(record())
    for length in range(0, len(content) - 2, 7):
        with pytest.raises(RecordError):
            read_record(put(folder, content[:length]))
    record_property("faults", 1)


def test_a_missing_record_is_missing(folder):
    with pytest.raises(FileNotFoundError):
        read_record(folder)


def test_collecting_names_the_damaged_and_keeps_the_rest(tmp_path, record_property):
    names = [f"arithmetic-t5_nano-ce-s{seed}-12345678" for seed in range(3)]
    for name in reversed(names):
        folder = tmp_path / "runs" / "arithmetic" / name
        folder.mkdir(parents=True)
        put(folder, to_json(record(id=name)))
    put(folder.parent / names[1], b"{")
    found, errors = records.read_records(tmp_path)
    assert [one["id"] for one in found] == [names[0], names[2]]
    assert [error.path.parent.name for error in errors] == [names[1]]
    record_property("faults", 1)


def test_history_is_a_table_by_step():
    rows = [{"step": 2, "ce": 0.5}, {"step": 1, "ce": 1, "ntl": math.nan}, {"step": 2, "eval_ce": np.float32(0.25)}]
    content = history_bytes(rows)
    table = pd.read_parquet(io.BytesIO(content))
    assert list(table.columns) == ["step", "ce", "eval_ce", "ntl"]
    assert table["step"].tolist() == [1, 2]
    assert table["ce"].tolist() == [1.0, 0.5]
    assert table["eval_ce"].isna().tolist() == [True, False]
    assert table["ntl"].isna().all()
    assert content == history_bytes([dict(reversed(row.items())) for row in rows])


def test_an_empty_history_is_a_table():
    assert pd.read_parquet(io.BytesIO(history_bytes([]))).empty


def test_predictions_are_ordered_and_hold_no_answer():
    rows = [
        {"split": "test", "state": state, "index": index, "text": f"{index}é"}
        for state in ("untrained", "trained")
        for index in (11, 2)
    ]
    content = predictions_bytes([*rows, {"split": "a", "state": "trained", "index": 0, "text": "", "truncated": True}])
    table = pd.read_parquet(io.BytesIO(content))
    assert list(table.columns) == ["split", "state", "index", "text", "truncated"]
    assert table["index"].tolist() == [0, 2, 11, 2, 11]
    assert table["truncated"].tolist() == [True, False, False, False, False]
    with pytest.raises(ValueError, match="answer"):
        predictions_bytes([{**rows[0], "answer": "7"}])


def test_tables_are_checked_against_the_record(folder, record_property):
    content = history_bytes([{"step": 1, "ce": 0.5}])
    (folder / "history.parquet").write_bytes(content)
    files = {"history.parquet": records.hashlib.sha256(content).hexdigest()}
    put(folder, to_json(record(files=files)))
    assert records.read_history(folder)["ce"].tolist() == [0.5]
    flipped = bytearray(content)
    flipped[20] ^= 1
    (folder / "history.parquet").write_bytes(flipped)
    for read in (records.read_history, read_record, records.read_whole):
        with pytest.raises(RecordError, match=r"history.parquet .*sha256"):
            read(folder)
    record_property("faults", 1)


def test_environment_names_no_one():
    found = records.environment()
    assert found["python"].startswith("3.")
    assert "numpy" in found["packages"]
    assert found["cores"] >= 1
    assert os.uname().nodename not in json.dumps(found) or len(os.uname().nodename) < 4
    to_json(found)


def git(folder, *arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def test_code_state_looks_at_code_alone(tmp_path, monkeypatch):
    (tmp_path / "ntl").mkdir()
    (tmp_path / "ntl" / "a.py").write_text("1")
    (tmp_path / "README.md").write_text("1")
    assert records.code_state(tmp_path) == {"revision": None, "clean": None}
    git(tmp_path, "init", "-q")
    assert records.code_state(tmp_path) == {"revision": None, "clean": None}  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as it may be inside of a hook
    state = records.code_state(tmp_path)
    assert len(state["revision"]) == 40
    assert state["clean"] is True
    (tmp_path / "README.md").write_text("2")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "new").write_text("")
    assert records.code_state(tmp_path)["clean"] is True
    (tmp_path / "ntl" / "new.py").write_text("")
    assert records.code_state(tmp_path)["clean"] is False
    assert records.code_state(tmp_path / "ntl") == {"revision": None, "clean": None}  # somebody else's repository
