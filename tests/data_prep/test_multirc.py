"""MultiRC: layout, answers that are none or several, validation by passage, hub and folder alike."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.local_hub import COMMIT, serve
from helpers.shared_data import shared

from data_prep.base import DataError
from data_prep.multirc import MultiRC

ROOT = Path(__file__).resolve().parents[2]


def passage(name: str, *questions: tuple[str, list[tuple[str, int]]]) -> dict:
    return {
        "idx": 0,
        "passage": {
            "text": f"{name} was here. ",
            "questions": [
                {"question": question, "answers": [{"text": text, "label": label} for text, label in answers]}
                for question, answers in questions
            ],
        },
    }


VAL = [passage("Eve", ("Who? ", [("Eve", 1), ("Adam", 0), (" she", 1)]), ("Why?", [("so", 0)]))]
TRAIN = [
    passage(f"P{n}", ("Who?", [(f"P{n}", 1), ("me", 0)]), ("Where?", [("here", 1), ("there", 0)])) for n in range(12)
]


def published(folder: Path, train: list = TRAIN, val: list = VAL) -> str:
    folder.mkdir(exist_ok=True)
    for name, records in (("train", train), ("val", val)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def hub_rows(records: list) -> list[dict]:
    """The same passages as the hub has them: one answer option a row."""
    return [
        {
            "paragraph": record["passage"]["text"],
            "question": question["question"],
            "answer": answer["text"],
            "idx": {"paragraph": p, "question": q, "answer": a},
            "label": answer["label"],
        }
        for p, record in enumerate(records)
        for q, question in enumerate(record["passage"]["questions"])
        for a, answer in enumerate(question["answers"])
    ]


def prepare(root: Path, folder: str, **options):
    options = {"validation_passages": 3} | options
    return MultiRC(source="local", folder=folder, **options).prepare(root, progress=False)


def passages(data, split: str) -> set[str]:
    return {row["question"].split("\n\nQuestion: ")[0] for row in data.rows(split)}


def test_layout_and_answers_that_are_several_or_none(tmp_path):
    data = prepare(tmp_path / "data", published(tmp_path / "files"))
    assert data.rows("test") == [
        {"question": "Eve was here.\n\nQuestion: Who?", "answer": "Eve | she"},
        {"question": "Eve was here.\n\nQuestion: Why?", "answer": ""},
    ]
    assert data.manifest["answers"] == "text"


def test_validation_is_drawn_by_passage_and_seed(tmp_path):
    folder = published(tmp_path / "files", train=[*TRAIN, passage("P0", ("When?", [("now", 1)]))])
    one, same, other = (prepare(tmp_path / str(n), folder, seed=n // 2) for n in range(3))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    train, validation = passages(one, "train"), passages(one, "validation")
    assert len(train) == 9 and len(validation) == 3 and not train & validation
    assert one.manifest["sizes"]["train"] + one.manifest["sizes"]["validation"] == 25
    assert one.manifest["counts"]["passages"] == {"train": 9, "validation": 3, "test": 1}


def test_a_file_without_labels_is_refused(tmp_path):
    val = json.loads(json.dumps(VAL))
    del val[0]["passage"]["questions"][1]["answers"][0]["label"]
    expected = r"val.jsonl, line 1: the answer 'so' has the label None, expected 0 or 1. The published test file"
    with pytest.raises(DataError, match=expected):
        prepare(tmp_path / "data", published(tmp_path / "files", val=val))


@pytest.mark.parametrize("record", [{"question": "a", "answer": "b"}, {"passage": {"text": "a"}}, ["a"]])
def test_a_file_of_another_form_is_named_by_line(tmp_path, record):
    folder = published(tmp_path / "files", train=[*TRAIN, record])
    with pytest.raises(DataError, match=rf"{re.escape(folder)}/train.jsonl, line 13: lacks .*expected SuperGLUE's"):
        prepare(tmp_path / "data", folder)


@pytest.mark.parametrize(("number", "complaint"), [(12, "but train has 12"), (0, "expected an integer of at least 1")])
def test_too_many_or_no_validation_passages_are_refused(tmp_path, number, complaint):
    with pytest.raises(ValueError, match=f"validation_passages: got {number}, {complaint}"):
        prepare(tmp_path / "data", published(tmp_path / "files"), validation_passages=number)


def test_the_hub_gives_what_the_files_give(tmp_path):
    local = prepare(tmp_path / "local", published(tmp_path / "files"))
    unlabelled = [row | {"label": -1} for row in hub_rows(VAL)]
    splits = {"train": hub_rows(TRAIN), "validation": hub_rows(VAL), "test": unlabelled}
    with serve("aps/super_glue", "multirc", splits) as hub:
        # In a process of its own: the package reads the hub's address once, when it is imported.
        result = subprocess.run(
            [sys.executable, "-m", "data_prep", "multirc", "validation_passages=3", "--root", tmp_path, "--quiet"],
            cwd=ROOT, env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")},
            capture_output=True, text=True,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert f"fingerprint  {local.fingerprint[:16]}" in result.stdout
    (manifest,) = (json.loads(path.read_text()) for path in tmp_path.glob("multirc/*/manifest.json"))
    assert manifest["source"]["revision"] == COMMIT and manifest["source"]["repository"] == "aps/super_glue"


def test_published_files_have_the_counts_of_their_questions(tmp_path):
    """Counted here without the loader: 5,131 questions of 456 passages in train, 953 of 83 in val."""
    counts, empty, joint = {}, {}, {}
    for name in ("train", "val"):
        lines = shared(f"multirc/{name}.jsonl").read_text().splitlines()
        found = [question for line in lines for question in json.loads(line)["passage"]["questions"]]
        right = [sum(answer["label"] for answer in question["answers"]) for question in found]
        counts[name], empty[name], joint[name] = len(found), right.count(0), sum(n - 1 for n in right if n)
    data = prepare(tmp_path, str(shared("multirc")), validation_passages=46)
    sizes, rows = data.manifest["sizes"], {split: data.rows(split) for split in data.splits}
    assert sizes["test"] == counts["val"] == 953
    assert sizes["train"] + sizes["validation"] == counts["train"] == 5131
    assert data.manifest["dropped"] == {"train": {}, "validation": {}}
    assert data.manifest["counts"]["passages"] == {"train": 410, "validation": 46, "test": 83}
    assert not passages(data, "train") & passages(data, "validation")
    assert not passages(data, "test") & (passages(data, "train") | passages(data, "validation"))
    answers = {
        "train": [row["answer"] for row in rows["train"] + rows["validation"]],
        "val": [row["answer"] for row in rows["test"]],
    }
    assert {name: texts.count("") for name, texts in answers.items()} == empty
    assert {name: sum(text.count(" | ") for text in texts) for name, texts in answers.items()} == joint


def test_the_published_test_file_in_place_of_val_is_refused(tmp_path):
    for name, source in (("train", "train"), ("val", "test")):
        (tmp_path / f"{name}.jsonl").symlink_to(shared(f"multirc/{source}.jsonl"))
    with pytest.raises(DataError, match="has the label None"):
        prepare(tmp_path / "data", str(tmp_path))
