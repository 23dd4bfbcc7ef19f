"""The table of spellings in `docs/numbers.md`, row by row."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import pytest

from data_prep.base import DataError
from data_prep.custom import MARKS, Custom
from ntl.number_grammar import Style, parse_number

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "numbers.md"


def rows(*header: str) -> list[list[str]]:
    """Return the rows of the table with this header."""
    lines = iter(DOCUMENT.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line == f"| {' | '.join(header)} |":
            break
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found.append([code[1] if (code := re.fullmatch("`(.*)`", cell)) else cell for cell in cells])
    return found


SPELLINGS = rows("spelling", "text", "value", "number column")
MARKED = rows("text", "decimal", "thousands", "number column")


def test_the_document_has_its_tables():
    assert len(SPELLINGS) >= 70 and len(MARKED) >= 15
    assert len({text for _, text, *_ in SPELLINGS}) == len(SPELLINGS)


@pytest.mark.parametrize(("text", "value"), [row[1:3] for row in SPELLINGS], ids=[row[0] for row in SPELLINGS])
def test_value_of_a_spelling(text, value):
    assert parse_number(text) == (None if value == "not a number" else Decimal(value))


def prepared(folder: Path, answers: list[str], **options) -> list[str]:
    """Return the answers as `dataset=custom` writes them."""
    files = {}
    for split in ("train", "validation", "test"):
        with open(folder / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["question", "answer"])
            writer.writerows([f"{split} {n}?", answer] for n, answer in enumerate(answers))
        files[split] = str(folder / f"{split}.csv")
    data = Custom(**files, answers="number", **options).prepare(folder / "data", progress=False)
    assert data.rows("train") == [row | {"question": f"train {n}?"} for n, row in enumerate(data.rows("test"))]
    return [row["answer"] for row in data.rows("train")]


def test_number_column_of_the_spellings(tmp_path):
    taken = [(text, column) for _, text, _, column in SPELLINGS if column != "listed"]
    assert prepared(tmp_path, [text for text, _ in taken]) == [column for _, column in taken]
    listed = [text for _, text, _, column in SPELLINGS if column == "listed"]
    for text in listed:
        with pytest.raises(DataError, match=r"train.csv, line 3: the answer"):
            prepared(tmp_path, ["1", text, "2"])


@pytest.mark.parametrize(("text", "decimal", "thousands", "column"), MARKED)
def test_declared_marks(tmp_path, text, decimal, thousands, column):
    options = {"decimal": decimal, "thousands": thousands}
    if column == "listed":
        with pytest.raises(DataError, match=r"train.csv, line 3: .*(dataset.thousands|expected)"):
            prepared(tmp_path, ["7", text], **options)
        return
    assert prepared(tmp_path, ["7", text], **options) == ["7", column]
    value = parse_number(text, Style(MARKS[decimal], MARKS[thousands]))
    assert value is not None and parse_number(column) == value
