"""Any bytes where a record should be: a record, or an error that names the file."""

import contextlib
import hashlib
import io
import json

import pytest
from helpers.damaged import damaged
from helpers.made_records import metrics, scores, write_record
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.analysis.records import Conflict, Record, Records
from experiments.benchmark import record as costs
from experiments.benchmark.settings import PARTS
from experiments.config.compose import compose
from ntl.runs.record import RECORD, RecordError, _digest, read_history, read_record, read_records, sealed

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [10**400, 1e308, "finished", "failed", "ntl.settings.TrainSettings", "no.such.Thing", "/etc/passwd"]
    )
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SPECIAL = [
    b"NaN",
    b"1e999",
    b"-Infinity",
    b"9" * 5000,
    b"\xff",
    b"\x00",
    b"[" * 100_000,
    b'{"a":' * 700 + b"1" + b"}" * 700,
]


@st.composite
def changed(draw, value):
    """The same value with one node, at any depth, replaced, removed or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        action = draw(st.integers(0, 9))
        if action == 0:
            return {k: v for k, v in value.items() if k != key}
        if action == 1:
            return value | {draw(st.text(max_size=6) | st.just("_target_")): draw(JSON)}
        return value | {key: draw(changed(value[key]))}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(changed(value[at])), *value[at + 1 :]]
    return draw(JSON)


@st.composite
def contents(draw, record):
    """Any bytes, any JSON, the record with a node changed, or its text cut or written into."""
    choice = draw(st.integers(0, 6))
    if choice == 0:
        return draw(st.binary(max_size=100))
    if choice == 1:
        return json.dumps(draw(JSON)).encode()
    value = draw(changed(record)) if choice < 6 else record
    if choice < 4 and isinstance(value, dict):  # as if it had been written so
        with contextlib.suppress(ValueError):
            value = value | {"digest": _digest(value)}
    content = json.dumps(value).encode()
    return draw(damaged(content, SPECIAL)) if choice in (5, 6) else content


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    config = compose(["logger=none"])
    write_record(folder, config, scores(metrics(0.5, 1.0), metrics(0.25, 2.0)))
    (path,) = (folder / "runs").glob(f"*/*/{RECORD}")
    return folder, path, json.loads(path.read_text()), config


@settings(deadline=None)
@given(data=st.data())
def test_any_record_is_read_or_named(whole, data):
    folder, path, record, config = whole
    path.write_bytes(data.draw(contents(record)))
    records, errors = read_records(folder)
    assert len(records) + len(errors) == 1
    for error in errors:
        assert str(error).startswith(str(path)) and len(str(error)) < 2000
        return
    found = Record(path, records[0])
    try:
        selected = Records([found]).select(config)
    except (RecordError, Conflict) as error:
        assert str(path) in str(error)
        return
    # What tables, claims and status ask of a record.
    assert selected in (None, found)
    assert isinstance(found.reason, str) and isinstance(found.algorithm_version, int) and hash(found.data) is not None
    for state in ("trained", "untrained", "mean"):
        for split in ("test", "interpolate"):
            try:
                value = found.value(state, split, "accuracy")
            except RecordError as error:
                assert str(path) in str(error)
                continue
            assert value is None or (value == value and abs(value) != float("inf"))
            found.groups(split)


@settings(deadline=None)
@given(content=st.binary(max_size=100) | st.integers(0, 2000), tail=st.binary(max_size=8))
def test_any_table_is_read_or_named(whole, content, tail):
    """The hash is the table's own: what was damaged before it was recorded."""
    import pandas

    _, path, record, _ = whole
    if isinstance(content, int):
        stream = io.BytesIO()
        pandas.DataFrame({"step": [1, 2], "loss": [0.5, None]}).to_parquet(stream)
        content = stream.getvalue()[:content] + tail
    (path.parent / "history.parquet").write_bytes(content)
    files = {"history.parquet": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(sealed(record | {"files": files})))
    assert read_record(path)
    try:
        assert "step" in read_history(path.parent)
    except RecordError as error:
        assert "history.parquet" in str(error)


@pytest.fixture(scope="module")
def measured():
    from experiments.analysis.records import RESULTS

    full = [path for path in sorted((RESULTS / "runtime").glob("*.json")) if not path.stem.endswith("-quick")]
    record = json.loads(full[0].read_text())
    parts = {}
    for row in record["measurements"]:
        parts.setdefault(row["part"], []).append(row)
    return record | {"measurements": [row for rows in parts.values() for row in rows[:2]]}


@settings(deadline=None)
@given(data=st.data())
def test_any_record_of_costs_is_read_or_named(tmp_path_factory, measured, data):
    folder = tmp_path_factory.getbasetemp() / "costs"
    (folder / "runtime").mkdir(parents=True, exist_ok=True)
    path = folder / "runtime" / "machine.json"
    path.write_bytes(data.draw(contents(measured)))
    try:
        records = costs.load(folder)
    except RecordError as error:
        assert str(error).startswith(str(path)) and len(str(error)) < 2000
        return
    for record in records.values():
        for part in PARTS:
            for rows in costs.groups(record, part):
                assert all(costs.ratios(row, rows[0]) for row in rows)
