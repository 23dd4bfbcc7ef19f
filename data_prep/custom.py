"""Anyone's questions and answers, from files: `dataset=custom dataset.train=a.jsonl dataset.test=b.csv`.

A file is jsonl (one object a line), csv or tsv (with a header; quoted as spreadsheets do), or parquet. It has a column
of questions and one of answers; other columns are left out. All rows are read before any work starts, and bad ones are
listed by file and line. Numbers in answers are written as plain decimals: those that are no text in the file, and those
in text by the grammar of `docs/numbers.md` with the declared decimal mark and separator of thousands.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import random
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from data_prep.base import (
    DataError,
    Dataset,
    Row,
    Work,
    half_character,
    text_lines,
)
from ntl.files import file_sha256
from ntl.number_grammar import LONGEST, PLAIN, Style, is_number, malformed, parse_number, plain_answer
from ntl.options import option, redeclared
from ntl.text import plain_number

SHOWN = 10  # bad rows in a message
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "vertical bar"}  # the first two are taken
MARKS = {"none": "", "point": ".", "comma": ",", "space": " "}
_DIGIT, _LETTER = re.compile("[0-9]"), re.compile("[A-Za-z]")
# An answer of these alone is meant as one number; in any other, the last number counts.
_NUMBER_ONLY = re.compile(r"[\d\s.,:'’_()/+$€£¥₹\u2010-\u2015\u2212-]*")


class Read(NamedTuple):
    """A line or row of a file: where it stands, and its question and answer or what is wrong with it."""

    where: str
    row: Row | None
    complaint: str | None = None
    typed: bool = False  # the answer is a number in the file, not a text


@dataclass
class Custom(Dataset):
    """`answers` is "number" or "text" once `check` has looked at the files."""

    sources: ClassVar = {"files": "train=FILE test=FILE [validation=FILE]: jsonl, csv, tsv or parquet"}
    licence: ClassVar = "the files' own"

    name: str = redeclared(Dataset, "name", "custom")
    source: str = redeclared(Dataset, "source", "files")
    folder: str | None = option(
        None, "that the files' names are relative to; null: the working directory", identity=False
    )
    train: str | None = option(None, "jsonl, csv, tsv or parquet", identity=False)
    validation: str | None = option(None, "as train; null: drawn from train", identity=False)
    test: str | None = option(None, "as train", identity=False)
    question_column: str = option("question", "column of the questions", identity=False)
    answer_column: str = option("answer", "column of the answers", identity=False)
    answers: str = option(
        "auto",
        "number: the last number of an answer counts; text; auto: number if every answer is one",
        choices=("auto", "number", "text"),
    )
    decimal: str = option("point", "decimal mark of the answers", choices=("point", "comma"), identity=False)
    thousands: str = option(
        "none",
        "what separates thousands in the answers; none: no mark that may be another",
        choices=MARKS,
        identity=False,
    )
    validation_share: float = option(0.1, "of train, where no validation file is given", above=0, below=1)
    seed: int = option(0, "seed of what is drawn", at_least=0)

    def check(self) -> None:
        super().check()
        if self.folder and not Path(self.folder).is_dir():
            raise ValueError(f"folder: got {self.folder!r}, which is no folder; expected the one that holds the files.")
        if self.decimal == self.thousands:
            raise ValueError(f"thousands: got {self.thousands!r}, which is the decimal mark; expected another mark.")
        reads = [read for path in self.files().values() for read in self._read(path)]
        kind = kind_of(reads, self.style) if self.answers == "auto" else self.answers
        bad = [f"\n  {read.where}: {problem}" for read in reads if (problem := complaint(read, kind, self.style))]
        if bad:
            more = f"\n  … and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
            raise DataError(
                f"{self.name}: {len(bad):,} of {len(reads):,} rows cannot be used. Correct or remove them:"
                + "".join(bad[:SHOWN])
                + more
            )
        self.answers = kind

    @property
    def style(self) -> Style:
        """How the answers' numbers are written."""
        return Style(MARKS[self.decimal], MARKS[self.thousands])

    def files(self) -> dict[str, Path]:
        """Return the file of each split that has one; ValueError if one is missing or of an unknown kind."""
        files = {}
        for split in ("train", "validation", "test"):
            name = getattr(self, split)
            if name is None and split == "validation":
                continue
            kinds = ", ".join(READERS)
            if not name:
                raise ValueError(f"{split}: got no file, expected one ({kinds}).")
            path = Path(self.folder or "", str(name))
            if path.suffix.lower() not in READERS:
                raise ValueError(f"{split}: got {name!r}, expected a file whose name ends in {kinds}.")
            if not path.is_file():
                raise ValueError(
                    f"{split}: got {name!r}, but there is no such file in {self.folder or 'the working directory'}."
                )
            files[split] = path
        return files

    def stamp(self) -> Any:
        files = {split: file_sha256(path) for split, path in self.files().items()}
        return [files, self.question_column, self.answer_column, self.decimal, self.thousands]

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        files = self.files()
        work.source["files"] = {split: {"name": p.name, "sha256": file_sha256(p)} for split, p in files.items()}
        rows = {split: [self._row(read) for read in self._read(path)] for split, path in files.items()}
        yield "test", rows["test"]
        if "validation" not in rows:
            # All rows of one question stay together, and a test question is no choice for validation.
            held_out = {row["question"] for row in rows["test"]}
            questions = list(dict.fromkeys(r["question"] for r in rows["train"] if r["question"] not in held_out))
            size = math.ceil(self.validation_share * len(questions))
            chosen = set(random.Random(f"{self.seed}/validation").sample(questions, size))
            rows["validation"] = [row for row in rows["train"] if row["question"] in chosen]
            rows["train"] = [row for row in rows["train"] if row["question"] not in chosen]
        yield "validation", rows["validation"]
        yield "train", rows["train"]

    def _row(self, read: Read) -> Row:
        if self.answers == "text" or read.typed:
            return read.row
        return read.row | {"answer": plain_answer(read.row["answer"], self.style)}

    def _read(self, path: Path) -> list[Read]:
        state = path.stat()
        return read_file(path, self.question_column, self.answer_column, (state.st_size, state.st_mtime_ns))


@functools.lru_cache(maxsize=3)  # check and produce, and the runs of a sweep, read the same files
def read_file(path: Path, question: str, answer: str, state: tuple[int, int]) -> list[Read]:
    """Return what stands in each row of a file; `state` tells one state of the file from another.

    Raises DataError if the file as a whole cannot be read: no UTF-8, no such column, unbalanced quotation marks, or
    the same wrong with every row.
    """
    reads = [
        Read(where, None, values) if isinstance(values, str) else read_row(where, values, question, answer)
        for where, values in READERS[path.suffix.lower()](path, (question, answer))
    ]
    if not reads:
        raise DataError(f"{path}: holds no row, expected at least one question and answer.")
    complaints = {read.complaint for read in reads}
    if len(reads) > 1 and len(complaints) == 1 and (every := complaints.pop()):
        raise DataError(f"{reads[0].where}: {every} (the same in all {len(reads):,} rows)")
    return reads


def read_row(where: str, values: Mapping[str, Any], question: str, answer: str) -> Read:
    """Return the question and answer of a row, or what is wrong with it."""
    row: Row = {}
    for key, column in (("question", question), ("answer", answer)):
        if column not in values:
            return Read(where, None, missing_column(key, column, values))
        text = as_text(values[column])
        if text is None:
            return Read(where, None, f"`{column}` is {reprlib.repr(values[column])}, expected a text or a number")
        if half_character(text):
            return Read(where, None, f"`{column}` holds half a character (a lone surrogate), expected whole ones")
        row[key] = text
    if not row["question"].strip():
        return Read(where, None, "the question is empty")
    return Read(where, row, typed=not isinstance(values[answer], str))


def missing_column(key: str, column: str, columns: Iterable[str]) -> str:
    shown = [str(name)[:40] for name in itertools.islice(columns, 20)]  # what is no header may be of any size
    return (
        f"no column `{column}`, found {', '.join(shown) or 'none'}. Name the column of {key}s: dataset.{key}_column=…"
    )


def check_columns(where: str, header: Sequence[str], columns: tuple[str, str]) -> None:
    """Raise DataError unless both columns stand in a header, once."""
    for key, column in zip(("question", "answer"), columns, strict=True):
        if column not in header:
            raise DataError(f"{where}: {missing_column(key, column, header)}")
        if header.count(column) > 1:
            raise DataError(
                f"{where}: {header.count(column)} columns are called `{column}`, expected one. Rename the others, or "
                f"name another column: dataset.{key}_column=…"
            )


def as_text(value: Any) -> str | None:
    """Return a text as it is and a number as a plain decimal; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):  # has no written form: the shortest that is this number
        return plain_number(Decimal(repr(value)))
    if isinstance(value, Decimal) and value.is_finite() and -LONGEST < value.adjusted() < LONGEST:
        return f"{value:f}"
    return None


def kind_of(reads: Iterable[Read], style: Style = PLAIN) -> str:
    """Return "number" if every answer is a number alone, else "text"; DataError if most only look like numbers."""
    answers = [read for read in reads if read.row]
    others = [read for read in answers if number_problem(read, style, alone=True)]
    like_numbers = [read for read in answers if _DIGIT.search(read.row["answer"])]
    like_numbers = sum(not _LETTER.search(read.row["answer"]) for read in like_numbers)
    if not others:
        return "number"
    if 2 * like_numbers <= len(answers):
        return "text"
    raise DataError(
        f"answers=auto: most answers look like numbers, but {len(others):,} of {len(answers):,} are no plain ones. The "
        f"first is {others[0].row['answer'][-80:]!r} ({others[0].where}). Correct these, declare how they are written "
        "(dataset.decimal, dataset.thousands; see docs/numbers.md), or say answers=number (the last number of an "
        "answer counts) or answers=text."
    )


def complaint(read: Read, kind: str, style: Style = PLAIN) -> str | None:
    """Return what keeps a row from being used, or None."""
    return read.complaint if read.row is None or kind == "text" else number_problem(read, style)


def number_problem(read: Read, style: Style, alone: bool = False) -> str | None:
    """Return why the number of an answer cannot be read without doubt, or None.

    Args:
        alone: whether the answer must be one number and nothing else; one without words must be in any case.
    """
    answer = read.row["answer"]
    if read.typed:
        return None
    if is_number(answer, style):
        if plain_answer(answer, style) is None:
            return f"the answer {answer[-80:]!r} has no finite decimal form, expected a decimal"
        return None
    declare = "if the marks are meant so, declare dataset.decimal and dataset.thousands (docs/numbers.md)"
    if found := malformed(answer, style):
        return f"the answer {answer[-80:]!r} ends in {found[-80:]!r}, which is no number here: correct it, or {declare}"
    if parse_number(answer, style) is None:
        return f"the answer {answer[-80:]!r} holds no number, expected one (answers=text takes any text)"
    if alone or _NUMBER_ONLY.fullmatch(answer):
        return f"the answer {answer[-80:]!r} is not one number: correct it, or {declare}"
    return None


# Each reader yields where a row stands, and its values by column or a text that says what is wrong with it.
Values = Iterator[tuple[str, Mapping[str, Any] | str]]


def read_jsonl(path: Path, columns: tuple[str, str]) -> Values:
    first = True
    for number, line in text_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if first and line.lstrip().startswith("["):
            raise DataError(
                f"{where}: the file is a JSON array, expected one object a line, with no brackets around them and no "
                f"commas between them; `jq -c '.[]' {path.name}` writes them so"
            )
        first = False
        try:
            value = json.loads(line, parse_float=Decimal, parse_int=Decimal)  # as written: 0.10 stays 0.10
        except json.JSONDecodeError as error:
            yield where, f"not JSON ({error.msg} at column {error.colno}), expected one object a line"
            continue
        except RecursionError:
            yield where, "objects are nested too deeply, expected one object of texts and numbers a line"
            continue
        except InvalidOperation:
            yield where, "a number's exponent is too large to be read, expected a text or a number"
            continue
        yield where, value if isinstance(value, dict) else f"got {type(value).__name__}, expected an object"


def read_csv(path: Path, columns: tuple[str, str], delimiter: str = ",") -> Values:
    check_delimiter(path, delimiter, columns)
    reader = csv.reader((f"{line}\n" for _, line in text_lines(path)), delimiter=delimiter, strict=True)
    start = 1
    try:
        header = next(reader, None)
        if header is None:
            return
        check_columns(f"{path}, line 1", header, columns)
        start = reader.line_num + 1
        for values in reader:
            where, start = f"{path}, line {start}", reader.line_num + 1
            if values and len(values) != len(header):
                expected = f"as many (a text that holds {delimiter!r} or a line break stands in quotation marks)"
                yield where, f"got {len(values)} values for {len(header)} columns, expected {expected}"
            elif values:
                yield where, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: cannot be read ({error}). Expected a text that holds a quotation mark to stand in "
            "quotation marks, with its own doubled. Correct it, or give the rows as jsonl."
        ) from error


def check_delimiter(path: Path, delimiter: str, columns: tuple[str, str]) -> None:
    """Raise DataError if the header of a csv or tsv file is separated by another character than `delimiter`."""
    line = next((line for _, line in text_lines(path)), "")
    headers = {mark: [name.strip().strip('"') for name in line.split(mark)] for mark in DELIMITERS}
    ours = headers[delimiter]
    if set(columns) & set(ours):
        return
    for mark, name in DELIMITERS.items():
        if mark != delimiter and (set(columns) <= set(headers[mark]) or len(headers[mark]) > len(ours) == 1):
            raise DataError(
                f"{path}, line 1: the columns are separated by {name}s ({line.strip()[:80]}), expected "
                f"{DELIMITERS[delimiter]}s. Save the file as csv with commas, as tsv with tabs, or as jsonl."
            )


def read_parquet(path: Path, columns: tuple[str, str]) -> Values:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        check_columns(str(path), file.schema_arrow.names, columns)
        rows = (row for batch in file.iter_batches(columns=list(dict.fromkeys(columns))) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"{path}, row {number}", row
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # texts or times that are none
        raise DataError(f"{path}: no readable parquet file ({str(error)[:500]}).") from error


READERS = {
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".tsv": functools.partial(read_csv, delimiter="\t"),
    ".parquet": read_parquet,
}
