"""GSM8K: numbers written plainly, the final answer last, the published sizes, hub and folder alike."""

import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from helpers.local_hub import COMMIT, out_of_reach, serve
from helpers.shared_data import shared
from hypothesis import given
from hypothesis import strategies as st

from data_prep.base import DataError
from data_prep.gsm8k import GSM8K, normalise
from ntl.number_grammar import parse_number

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [
    {
        "question": "A pays $1,234.50 and .5?",
        "answer": "He pays 2*.5=<<2*.5=1>>1.\nThen 1,000+1=<<1000+1=1001>>1,001\n#### 1,001",
    },
    {"question": "Loses 3?", "answer": "3 - 6 = <<3-6=-3>>-3\n#### -3"},
    {"question": "Three?", "answer": "3\n#### 3"},
    {"question": "Four?", "answer": "4\n#### 4"},
]
TEST = [{"question": "Two?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$1,234.50", "$1234.50"),
        ("1,234,567 and 12,000", "1234567 and 12000"),
        ("80 000 x 20/100 = $16 000.", "80000 x 20/100 = $16000."),
        ("12 200-kilobyte videos", "12 200-kilobyte videos"),
        ("an 80,000-ton ship", "an 80000-ton ship"),
        (".5 $.25 2*.5 25x.4", "0.5 $0.25 2*0.5 25x0.4"),
        ("12.5 and 0.75", "12.5 and 0.75"),
        ("-.5", "-0.5"),
        ("days 4,5,6 and 13,15,17", "days 4,5,6 and 13,15,17"),
        ("16,0000 $100,00 13,2000", "16,0000 $100,00 13,2000"),
        ("Only 10, 100 - 10 left.", "Only 10, 100 - 10 left."),
        ("The end. Then 3.", "The end. Then 3."),
        ("In 2024 100 came", "In 2024 100 came"),
    ],
)
def test_numbers_are_written_plainly(text, expected):
    assert normalise(text) == expected
    assert normalise(expected) == expected


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=2))
def test_a_number_keeps_its_value(number):
    assert parse_number(normalise(f"so he has ${number:,}")) == number
    assert parse_number(normalise(f"so he has {number:,}".replace(" 0.", " ."))) == number


def folder_of(path: Path, train: list[dict], test: list[dict]) -> str:
    for name, rows in (("train", train), ("test", test)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prepare(root: Path, folder: str, **options):
    return GSM8K(source="local", folder=folder, **options).prepare(root, progress=False)


def test_solutions_lose_their_marks_unless_they_are_wanted(tmp_path):
    folder = folder_of(tmp_path, TRAIN, TEST)
    row = {"question": "A pays $1234.50 and 0.5?", "answer": "He pays 2*0.5=1.\nThen 1000+1=1001\n#### 1001"}
    plain = prepare(tmp_path / "data", folder, validation_size=1)
    assert row in plain.rows("train") + plain.rows("validation")
    assert plain.rows("test") == [{"question": "Two?", "answer": "1 + 1 = 2\n#### 2"}]
    kept = prepare(tmp_path / "data", folder, validation_size=1, marks=True)
    assert "2*0.5=<<2*0.5=1>>1." in " ".join(r["answer"] for r in kept.rows("train") + kept.rows("validation"))
    assert kept.rows("test")[0]["answer"] == "1 + 1 = <<1+1=2>>2\n#### 2"


def test_the_seed_draws_validation(tmp_path):
    folder = folder_of(tmp_path, TRAIN + [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(50)], TEST)
    one, same, other = (prepare(tmp_path / str(n), folder, validation_size=9, seed=n // 2) for n in range(3))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    questions = [row["question"] for split in ("train", "validation") for row in one.rows(split)]
    assert len(questions) == len(set(questions)) == 54 and one.manifest["sizes"]["validation"] == 9


@pytest.mark.parametrize("answer", ["No number", "#### none", "12", "#### 12 apples", "#### 1\n#### "])
def test_a_solution_without_a_final_number_is_named_by_file_and_line(tmp_path, answer):
    folder = folder_of(tmp_path, [*TRAIN, {"question": "?", "answer": answer}], TEST)
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))}/train.jsonl, line 5: "):
        prepare(tmp_path / "data", folder, validation_size=1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"validation_size": 4}, "validation_size: got 4, but train has 4 problems"),
        ({"validation_size": 0}, "validation_size: got 0, expected an integer of at least 1"),
        ({"marks": "no"}, "marks: got 'no', expected true or false"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        prepare(tmp_path / "data", folder_of(tmp_path, TRAIN, TEST), **options)


def test_a_missing_file_is_named(tmp_path):
    folder = folder_of(tmp_path, TRAIN, TEST)
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"test.jsonl: missing"):
        prepare(tmp_path / "data", folder, validation_size=1)


def test_published_files_have_the_published_sizes_and_plain_numbers(tmp_path):
    data = prepare(tmp_path, str(shared("gsm8k")))
    assert data.manifest["sizes"] == {"train": 6353, "validation": 1120, "test": 1319}
    assert data.manifest["dropped"] == {"train": {}, "validation": {}}
    finals = {}
    for name in ("train", "test"):
        for line in shared(f"gsm8k/{name}.jsonl").read_text().splitlines():
            problem = json.loads(line)
            finals[normalise(problem["question"])] = Decimal(problem["answer"].split("####")[1].replace(",", ""))
    rows = [row for split in data.splits for row in data.rows(split)]
    assert len(rows) == len(finals)
    for row in rows:
        assert parse_number(row["answer"]) == finals[row["question"]]
        assert "<<" not in row["answer"] and not re.search(r"(?<![0-9])\.[0-9]", f"{row['question']}\n{row['answer']}")


# The hub, in processes of their own: the package reads its address once, when it is imported.


def command(root: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "data_prep", "gsm8k", "validation_size=1", *options, "--root", str(root), "--quiet"],
        cwd=ROOT, env=os.environ | {"HF_HOME": str(root / "hub")} | environment, capture_output=True, text=True,
    )  # fmt: skip


def test_the_hub_gives_what_the_files_give_and_a_transfer_that_breaks_is_continued(tmp_path):
    train = [*TRAIN, *({"question": f"{n}? " + "x" * n, "answer": f"#### {n}"} for n in range(100))]
    local = prepare(tmp_path / "local", folder_of(tmp_path, train, TEST), validation_size=1)
    with serve("openai/gsm8k", "main", {"train": train, "test": TEST}) as hub:
        hub.breaks = 1
        result = command(tmp_path, HF_ENDPOINT=hub.url)
    assert result.returncode == 0, result.stderr
    assert hub.breaks == 0 and f"fingerprint  {local.fingerprint[:16]}" in result.stdout
    (manifest,) = (json.loads(path.read_text()) for path in tmp_path.glob("gsm8k/*/manifest.json"))
    expected = {"kind": "hub", "repository": "openai/gsm8k", "config": "main", "revision": COMMIT}
    assert manifest["source"] == expected


@pytest.mark.parametrize("offline", [False, True])
def test_without_the_hub_one_message_says_what_to_do_after_one_attempt(tmp_path, offline):
    """The package alone would repeat its attempts for half a minute."""
    with out_of_reach() as hub:
        result = command(tmp_path, HF_ENDPOINT=hub.url, **({"HF_HUB_OFFLINE": "1"} if offline else {}))
    assert hub.attempts == (0 if offline else 1)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"cannot load openai/gsm8k (main) from the hub {hub.url}" in result.stderr
    assert "source=local folder=PATH" in result.stderr


def test_a_repository_that_is_not_there_is_named(tmp_path):
    with serve("openai/gsm8k", "main", {"train": TRAIN, "test": TEST}) as hub:
        result = command(tmp_path, "hub=openai/gsm9k", HF_ENDPOINT=hub.url)
    assert result.returncode == 1 and "cannot load openai/gsm9k" in result.stderr and "Traceback" not in result.stderr
