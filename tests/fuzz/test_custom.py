"""Any bytes in a custom data set's files: rows, or an error that names the file and, for a row, its line."""

import io
import json
import re
from pathlib import Path

import pytest
from helpers.damaged import damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.base import DataError
from data_prep.custom import READERS, Custom, kind_of, read_file

FILES = sorted(READERS)
CELLS = st.text(max_size=20) | st.sampled_from(
    ["7", "-1.5", "1e5", "1,234", '"', '""a', "\ud800", "\x00", "\ufeff", "\r"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | CELLS | st.integers(10**4000, 10**4200),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CELLS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["question", "answer", "extra", "Question", ""])
SPECIAL = [
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b'"',
    b"\\ud800",
    b"1e999999999",
    b"[" * 3000,
    b"9" * 5000,
]


def table(rows, separator):
    return "".join(separator.join(row) + "\n" for row in rows).encode("utf-8", "surrogatepass")


def parquet(columns):
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(
        pyarrow.table([pyarrow.array(values) for _, values in columns], [n for n, _ in columns]), stream
    )
    return stream.getvalue()


def well_meant(suffix):
    """Files of the right form, with columns and values that may be anything."""
    if suffix == ".jsonl":
        lines = st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | VALUES, max_size=5)
        return lines.map(lambda values: "\n".join(map(json.dumps, values)).encode())
    if suffix == ".parquet":
        kinds = [
            st.text(max_size=8),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.binary(max_size=4),
            st.datetimes(),
            st.booleans(),
            st.decimals(places=3, min_value=-(10**9), max_value=10**9, allow_nan=False),
            st.lists(st.integers(0, 9), max_size=2),
        ]
        columns = st.sampled_from(kinds).flatmap(lambda kind: st.lists(st.none() | kind, min_size=3, max_size=3))
        return st.lists(st.tuples(NAMES, columns), min_size=1, max_size=4).map(parquet)
    header = st.just(["question", "answer"]) | st.lists(NAMES, min_size=1, max_size=4)
    rows = st.lists(st.lists(CELLS, min_size=1, max_size=4) | st.just(["a", "1"]), max_size=5)
    separator = "\t" if suffix == ".tsv" else ","
    return st.tuples(header, rows).map(lambda parts: table([parts[0], *parts[1]], separator))


@st.composite
def contents(draw, suffix):
    """Anything at all, a file of the right form, or one that has been cut or written into."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    content = draw(well_meant(suffix))
    for _ in range(draw(st.integers(0, 3))):
        content = draw(damaged(content, SPECIAL))
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("suffix", FILES)
@settings(deadline=None)
@given(data=st.data())
def test_any_file_is_rows_or_a_clear_error(suffix, folder, data):
    path = Path(folder, f"a{suffix}")
    path.write_bytes(data.draw(contents(suffix)))
    place = re.compile(rf"{re.escape(str(path))}(, (line|row) \d+)?: ")
    try:
        reads = read_file.__wrapped__(path, "question", "answer", (0, 0))
    except DataError as error:
        assert place.match(str(error)) and len(str(error)) < 2000
        return
    for read in reads:
        assert re.fullmatch(rf"{re.escape(str(path))}, (line|row) \d+", read.where)
        assert (read.row is None) == (read.complaint is not None)
        if read.row:
            assert read.row["question"].strip() and "".join(read.row.values()).encode() is not None
        else:
            assert len(read.complaint) < 1000
    try:
        kind_of(reads)
    except DataError as error:
        assert "answers=auto" in str(error)


@pytest.mark.parametrize("suffix", FILES)
@settings(deadline=None, max_examples=settings.default.max_examples // 20)  # each is written to the disk, for good
@given(data=st.data())
def test_what_passes_the_check_is_prepared(suffix, folder, data):
    path, test = Path(folder, f"b{suffix}"), Path(folder, "test.jsonl")
    path.write_bytes(data.draw(well_meant(suffix)))
    test.write_text('{"question": "0 + 0?", "answer": "0"}\n')
    dataset = Custom(train=str(path), test=str(test), answers="text", validation_share=0.5)
    read_file.cache_clear()
    try:
        dataset.check()
    except DataError as error:
        assert str(path) in str(error)
        return
    try:
        prepared = dataset.prepare(folder / "data", progress=False)
    except DataError as error:
        assert "is empty" in str(error)  # a single question cannot be divided
    else:
        assert prepared.manifest["sizes"]["train"] == len(prepared.rows("train"))
