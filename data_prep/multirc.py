"""MultiRC (Khashabi et al., 2018) as SuperGLUE has it: a passage and a question that may have several right answers.

The question is the passage, a blank line and `Question: …`; the answer joins the right answers by ` | ` and is empty
where none is right. The published test file has no labels, so the published validation file is the test split here,
and validation is drawn from train by passage: no passage is in both.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_prep.base import DataError, Dataset, Row, Work, json_lines, published_file
from data_prep.hub import HubDataset
from ntl.options import option, redeclared

JOINT = " | "


@dataclass
class MultiRC(HubDataset):
    """The data set `multirc`."""

    sources: ClassVar = {
        "hub": "aps/super_glue (configuration multirc) of the Hugging Face hub",
        "local": "folder=<train.jsonl and val.jsonl of SuperGLUE's MultiRC>",
    }
    typical_tokens: ClassVar = (684, 91)
    licence: ClassVar = "MultiRC by way of SuperGLUE, for research (cogcomp.seas.upenn.edu/multirc)"
    answers: ClassVar = "text"
    config: ClassVar = "multirc"

    name: str = redeclared(Dataset, "name", "multirc")
    hub: str = redeclared(HubDataset, "hub", "aps/super_glue")
    validation_passages: int = option(46, "drawn from train's 456, with all their questions", at_least=1)
    seed: int = option(0, "seed of what is drawn", at_least=0)

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        if self.source == "hub":
            splits = self.hub_splits(work, ("train", "validation"))
            answers = [hub_answers(split) for split in splits]
        else:
            paths = [published_file(Path(self.folder), *names) for names in (("train.jsonl",), ("val.jsonl",))]
            answers = [file_answers(path) for path in paths]
        train, test = map(by_passage, answers)
        if self.validation_passages >= len(train):
            raise DataError(
                f"validation_passages: got {self.validation_passages}, but train has {len(train)}. Choose fewer."
            )
        held_out = set(random.Random(f"{self.seed}/validation").sample(list(train), self.validation_passages))
        work.counts["passages"] = {
            "train": len(train) - len(held_out),
            "validation": len(held_out),
            "test": len(test),
        }
        for split, passages in {
            "test": test,
            "validation": {passage: train[passage] for passage in train if passage in held_out},
            "train": {passage: train[passage] for passage in train if passage not in held_out},
        }.items():
            yield split, [row for rows in passages.values() for row in rows]


# One answer option: where it stands, the passage, the question, the option and its label.
Option = tuple[str, str, str, str, Any]


def file_answers(path: Path) -> Iterator[Option]:
    """Yield the answer options of a published file: one passage a line."""
    for where, record in json_lines(path):
        try:
            passage = record["passage"]
            for question in passage["questions"]:
                for answer in question["answers"]:
                    yield where, passage["text"], question["question"], answer["text"], answer.get("label")
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{where}: lacks {error}; expected SuperGLUE's {{passage: {{text, questions: [{{question, answers: "
                "[{text, label}]}]}}."
            ) from error


def hub_answers(split: Iterable[Mapping[str, Any]]) -> Iterator[Option]:
    """Yield the answer options of a split of the hub: one option a row."""
    for number, row in enumerate(split, 1):
        yield f"row {number}", row["paragraph"], row["question"], row["answer"], row["label"]


def by_passage(options: Iterable[Option]) -> dict[str, list[Row]]:
    """Return each passage's rows, in their order; DataError where an option has no label."""
    right: dict[str, dict[str, list[str]]] = {}
    for where, passage, question, answer, label in options:
        if label not in (0, 1):
            raise DataError(
                f"{where}: the answer {answer[:40]!r} has the label {label!r}, expected 0 or 1. The published test "
                "file has no labels; use train and val."
            )
        of_question = right.setdefault(passage.strip(), {}).setdefault(question.strip(), [])
        if label == 1:
            of_question.append(answer.strip())
    return {
        passage: [
            {"question": f"{passage}\n\nQuestion: {question}", "answer": JOINT.join(answers)}
            for question, answers in questions.items()
        ]
        for passage, questions in right.items()
    }
