"""Anyone's files: every format reads the same, bad rows are listed by file and line, paths never count."""

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from data_prep.base import DataError
from data_prep.custom import Custom, as_text
from ntl.runs.identity import canonical, public

ROWS = [
    {"question": "How much, in all?", "answer": "-12.50"},
    {"question": 'She said "two"', "answer": "2"},
    {"question": "First line\nsecond line", "answer": "30"},
    {"question": "Größe µ?", "answer": ".5"},
]
MORE = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(40)]
TEST = [{"question": "0 + 0?", "answer": "0"}]


def write(path: Path, rows: list[dict]) -> str:
    import pandas

    frame = pandas.DataFrame(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return str(path)


def custom(tmp_path: Path, train: list[dict] | str = ROWS + MORE, test: list[dict] | str = TEST, **options) -> Custom:
    """Rows go to jsonl files, text to files of csv."""
    files = {}
    for split, content in {"train": train, "test": test}.items():
        path = tmp_path / f"{split}.{'csv' if isinstance(content, str) else 'jsonl'}"
        files[split] = write(path, content) if not isinstance(content, str) else str(path)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
    return Custom(**files | options)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_every_format_reads_the_same(tmp_path, kind):
    rows = [row | {"other": "left out"} for row in ROWS]
    files = {
        "train": write(tmp_path / f"a.{kind}", rows),
        "validation": write(tmp_path / f"b.{kind}", MORE[:3]),
        "test": write(tmp_path / f"c.{kind}", TEST),
    }
    data = Custom(**files).prepare(tmp_path / "data", progress=False)
    assert data.rows("train") == ROWS and data.rows("validation") == MORE[:3] and data.rows("test") == TEST
    assert data.manifest["answers"] == "number"


def test_formats_may_be_mixed_columns_named_and_files_lie_in_one_folder(tmp_path):
    write(
        tmp_path / "a.csv", [{"id": n, "prompt": row["question"], "gold": row["answer"]} for n, row in enumerate(MORE)]
    )
    write(tmp_path / "b.jsonl", [{"prompt": "0?", "gold": 0}])
    options = {"question_column": "prompt", "answer_column": "gold"}
    dataset = Custom(folder=str(tmp_path), train="a.csv", test="b.jsonl", **options)
    data = dataset.prepare(tmp_path / "data", progress=False)
    assert data.rows("test") == [{"question": "0?", "answer": "0"}]
    assert all(row in MORE for row in data.rows("train"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.50", "1.50"), (3, "3"), (-2.5, "-2.5"), (3.0, "3"), (1e-7, "0.0000001"), (1e22, "1" + "0" * 22),
        (Decimal("0.10"), "0.10"), (Decimal("1E+3"), "1000"),
        (None, None), (True, None), (float("nan"), None), (float("inf"), None), ([1], None),
    ],
)  # fmt: skip
def test_numbers_become_plain_decimals(value, text):
    assert as_text(value) == text


def test_numbers_in_json_stay_as_written(tmp_path):
    path = tmp_path / "train.jsonl"
    answers = ["0.10", "12345678901234567890.5", "-7", "1e3"]
    path.write_text("".join(f'{{"question": "q{n}", "answer": {text}}}\n' for n, text in enumerate(answers)))
    dataset = Custom(
        train=str(path), test=write(tmp_path / "t.jsonl", TEST), validation=write(tmp_path / "v.csv", MORE)
    )
    rows = dataset.prepare(tmp_path / "data", progress=False).rows("train")
    assert [row["answer"] for row in rows] == ["0.10", "12345678901234567890.5", "-7", "1000"]


def test_validation_is_drawn_from_train_by_question_and_seed(tmp_path):
    train = [*MORE, *MORE, *TEST]  # every question twice, and one of the test
    one, same, other = (
        custom(tmp_path, train, seed=n // 2, validation_share=0.2).prepare(tmp_path / str(n), progress=False)
        for n in range(3)
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint
    questions = {split: {row["question"] for row in one.rows(split)} for split in one.splits}
    assert len(questions["validation"]) == 8 and len(questions["train"]) == 32
    assert not questions["validation"] & questions["train"]
    assert one.manifest["dropped"]["train"] == {"test": 1} and one.manifest["sizes"]["train"] == 64


# Kinds of answers


@pytest.mark.parametrize(
    ("answers", "given", "kind"),
    [
        (["1", "-2.5", " +3 ", ".5"], "auto", "number"),
        (["yes", "in 1920", "", "no"], "auto", "text"),
        (["yes", "no", "3", "perhaps"], "auto", "text"),
        (["so 1 + 1 = 2", "it is 3"], "auto", "text"),
        (["so 1 + 1 = 2", "1,000 less 3 is 997", "-4 m"], "number", "number"),
        (["1", "2"], "text", "text"),
    ],
)
def test_the_kind_of_answers_is_seen_or_said(tmp_path, answers, given, kind):
    rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    dataset = custom(tmp_path, rows, rows[:1], answers=given)
    dataset.check()
    assert dataset.answers == kind
    dataset.check()
    assert dataset.answers == kind


@pytest.mark.parametrize("answer", ["12O", "1,234", "3,14", "1 234", "5%", "", "n/a"])
def test_a_few_answers_that_are_no_numbers_make_no_text_dataset_silently(tmp_path, answer):
    rows = [*MORE, {"question": "last", "answer": answer}]
    expected = (
        rf"1 of 42 are no plain ones.*first is {re.escape(repr(answer))} \(.*train.jsonl, line 41\).*answers=text"
    )
    with pytest.raises(DataError, match=expected):
        custom(tmp_path, rows).check()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("none", "holds no number"),
        ("", "holds no number"),
        ("1,234", "ends in '1,234', which is no number here"),
        ("3,14", "ends in '3,14', which is no number here"),
        ("1.234,5", "ends in '1.234,5', which is no number here"),
        ("1 234", "is not one number"),
        ("(5)", "is not one number"),
        ("3-4", "is not one number"),
        ("it is $1,234.50 in all", "ends in '1,234.50', which is no number here: .* declare dataset.decimal"),
        ("1/3", "has no finite decimal form"),
    ],
)
def test_answers_that_could_be_read_as_another_number_are_refused(tmp_path, answer, complaint):
    rows = [*MORE, {"question": "last", "answer": answer}]
    message = rf"train.jsonl, line 41: the answer {re.escape(repr(answer))} {complaint}"
    with pytest.raises(DataError, match=message):
        custom(tmp_path, rows, answers="number").check()


def test_a_column_with_decimal_commas_is_prepared_as_plain_decimals(tmp_path):
    written = ["3,14", "1.234,5", "−5", "1e5", "7"]
    rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate(written)]
    rows.append({"question": "a number in the file", "answer": 2.5})
    dataset = custom(tmp_path, MORE, rows, decimal="comma", thousands="point")
    data = dataset.prepare(tmp_path / "data", progress=False)
    assert [row["answer"] for row in data.rows("test")] == ["3.14", "1234.5", "-5", "100000", "7", "2.5"]
    plain = custom(tmp_path, [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}])
    dotted = Custom(**vars(plain) | {"decimal": "comma"})
    assert plain.location(tmp_path) != dotted.location(tmp_path)  # other marks may mean other rows
    with pytest.raises(ValueError, match="thousands: got 'comma', which is the decimal mark"):
        Custom(**vars(plain) | {"decimal": "comma", "thousands": "comma"}).check()


# Bad rows


def test_bad_rows_are_counted_and_the_first_ten_listed_by_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"question": "ok", "answer": "1"}\n\n{"question": "no answer"}\n{"question": "a", "answer": null}\n'
        '["a", "1"]\n{"question": " ", "answer": "1"}\n{"question": "a", "answer": true}\nnonsense\n'
    )
    many = "".join(f'"line\nbreak {n}",1,2\n' for n in range(8))
    (tmp_path / "b.csv").write_text(f'question,answer\n"fine, too",2\n{many}short\n')
    with pytest.raises(DataError) as error:
        Custom(train=str(tmp_path / "a.jsonl"), test=str(tmp_path / "b.csv")).check()
    lines = str(error.value).splitlines()
    assert lines[0] == "custom: 15 of 17 rows cannot be used. Correct or remove them:"
    assert len(lines) == 12 and lines[-1] == "  … and 5 more"
    a, b = tmp_path / "a.jsonl", tmp_path / "b.csv"
    assert lines[1].startswith(f"  {a}, line 3: no column `answer`, found question. Name the column of answers: ")
    assert lines[2] == f"  {a}, line 4: `answer` is None, expected a text or a number"
    assert lines[3] == f"  {a}, line 5: got list, expected an object"
    assert lines[4] == f"  {a}, line 6: the question is empty"
    assert lines[6].startswith(f"  {a}, line 8: not JSON")
    assert lines[7].startswith(f"  {b}, line 3: got 3 values for 2 columns")
    assert lines[8].startswith(f"  {b}, line 5: got 3 values for 2 columns")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            "questions,answer\na,1\n",
            r"train.csv, line 1: no column `question`, found questions, answer\. .*dataset\.question_column=…",
        ),
        (
            "question,result\na,1\n",
            r"train.csv, line 1: no column `answer`, found question, result\. .*dataset\.answer_column=…",
        ),
        (
            "question;answer\na;1\n",
            r"line 1: the columns are separated by semicolons \(question;answer\), expected commas\. ",
        ),
        ('"question";"answer"\n"a";"1"\n', r"line 1: the columns are separated by semicolons .* as tsv with tabs"),
        ("Frage;Antwort\na;1\n", r"line 1: the columns are separated by semicolons"),
        ("question\tanswer\na\t1\n", r"line 1: the columns are separated by tabs"),
        ("", "holds no row"),
        ("question,answer\n", "holds no row"),
        ('question,answer\n"a" b,1\n', "line 2: cannot be read"),
        ('question,answer\na,1\n"never closed,1\nb,2\n', "line 3: cannot be read .*jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path, content, complaint):
    with pytest.raises(DataError, match=complaint):
        custom(tmp_path, content).check()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '[{"question": "a", "answer": "1"}]',
            "train.jsonl, line 1: the file is a JSON array, expected one object a line",
        ),
        ('\n[\n {\n  "question": "a"', r"train.jsonl, line 2: the file is a JSON array, .*jq -c '\.\[\]' train.jsonl"),
        (
            '{"question": "a", "result": 1}\n{"question": "b", "result": 2}\n',
            r"train.jsonl, line 1: no column `answer`, found question, result\. .*answer_column=… .*in all 2 rows\)",
        ),
    ],
)
def test_json_that_is_not_as_expected_throughout_is_said_once(tmp_path, content, complaint):
    dataset = custom(tmp_path)
    Path(dataset.train).write_text(content)
    with pytest.raises(DataError, match=complaint) as error:
        dataset.check()
    assert len(str(error.value).splitlines()) == 1


def test_bytes_that_are_no_utf8_are_named_and_a_byte_order_mark_is_none_of_the_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfquestion,answer\r\nGr\xf6\xdfe,1\r\n")
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        Custom(train=str(path), test=str(path)).check()
    path.write_bytes(b"\xef\xbb\xbfquestion,answer\r\na,1\r\nb,2\r\n")
    dataset = Custom(train=str(path), test=write(tmp_path / "t.jsonl", TEST), validation_share=0.5)
    assert dataset.prepare(tmp_path / "data", progress=False).manifest["sizes"]["train"] == 1


def test_parquet_without_the_columns_or_that_is_none_is_named(tmp_path):
    other = write(tmp_path / "other.parquet", [{"prompt": "a", "answer": 1}])
    with pytest.raises(
        DataError, match=r"other.parquet: no column `question`, found prompt, answer\. .*question_column=…"
    ):
        Custom(train=other, test=other).check()
    (tmp_path / "none.parquet").write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"none.parquet: no readable parquet file"):
        Custom(train=str(tmp_path / "none.parquet"), test=other).check()
    gap = write(tmp_path / "gap.parquet", [{"question": "a", "answer": "1"}, {"question": "b", "answer": None}])
    with pytest.raises(DataError, match=r"gap.parquet, row 2: `answer` is None"):
        Custom(train=gap, test=gap).check()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"train": None}, r"train: got no file, expected one \(.jsonl"),
        ({"test": None}, "test: got no file"),
        ({"test": "nowhere.csv"}, "test: got 'nowhere.csv', but there is no such file"),
        ({"validation": "a.xlsx"}, r"validation: got 'a.xlsx', expected a file whose name ends in .jsonl, .csv, .tsv"),
        ({"answers": "numbers"}, "answers: got 'numbers', expected one of auto, number, text"),
        ({"answers": "digits"}, "answers: got 'digits', expected one of auto, number, text$"),
        ({"validation_share": 1}, "validation_share: got 1, expected a finite number above 0 and below 1"),
        ({"folder": "nowhere"}, "folder: got 'nowhere', which is no folder"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Custom(**vars(custom(tmp_path)) | options).check()


# Identity


def node(dataset: Custom) -> dict:
    return {"dataset": {"_target_": "data_prep.custom.Custom", **vars(dataset)}}


def test_the_same_rows_elsewhere_are_the_same_data_and_the_same_run(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    here = custom(tmp_path / "x")
    there = Custom(
        folder=str(tmp_path / "y"), train="other.parquet", test="test.tsv",
        question_column="q", answer_column="a",
    )  # fmt: skip
    for name, rows in (("other.parquet", ROWS + MORE), ("test.tsv", TEST)):
        write(tmp_path / "y" / name, [{"q": row["question"], "a": row["answer"]} for row in rows])
    assert canonical(node(here)) == canonical(node(there))
    assert str(tmp_path) not in json.dumps(public(node(here)))
    first, second = (dataset.prepare(tmp_path / "data", progress=False) for dataset in (here, there))
    assert first.fingerprint == second.fingerprint
    assert str(tmp_path) not in json.dumps(first.manifest)


def test_an_edited_file_is_prepared_anew_and_a_moved_one_is_not(tmp_path):
    dataset = custom(tmp_path)
    first = dataset.prepare(tmp_path / "data", progress=False)
    moved = Custom(train=str(Path(dataset.train).rename(tmp_path / "moved.jsonl")), test=dataset.test)
    assert moved.prepare(tmp_path / "data", progress=False).folder == first.folder
    write(tmp_path / "moved.jsonl", [*ROWS, *MORE, {"question": "new", "answer": "9"}])
    edited = moved.prepare(tmp_path / "data", progress=False)
    assert edited.folder != first.folder and edited.fingerprint != first.fingerprint


def test_the_command_takes_the_files(tmp_path, capsys):
    from data_prep.__main__ import main

    dataset = custom(tmp_path)
    given = [f"train={dataset.train}", f"test={dataset.test}", "--root", str(tmp_path / "data"), "--quiet"]
    assert main(["custom", *given]) == 0
    assert "custom is ready" in capsys.readouterr().out
    assert main(["custom", "train=a.csv"]) == 2
    assert "train: got 'a.csv', but there is no such file" in capsys.readouterr().err


def test_a_name_that_leads_out_of_the_data_folder_writes_nothing(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}\n')
    with pytest.raises(ValueError, match="expected letters, digits"):
        Custom(name="../x", train=str(file), test=str(file)).prepare(tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]
