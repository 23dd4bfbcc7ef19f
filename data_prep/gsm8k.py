"""GSM8K (Cobbe et al., 2021): grade-school word problems with written solutions that end in `#### number`.

The answer is the whole solution; its last number is the one after `####`, which is what accuracy looks at. Numbers are
written without separators of thousands and with a digit before the decimal point: `$1,234.50` becomes `$1234.50`,
`80 000` becomes `80000`, `.5` becomes `0.5`. The test split is the published one; validation is drawn from train.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_prep.base import DataError, Dataset, Row, Work, check_row, json_lines, published_file
from data_prep.hub import HubDataset
from ntl.number_grammar import PLAIN, Style, is_number, plain_numbers
from ntl.options import option, redeclared

STYLE = Style(thousands=", ")  # a blank separates thousands in some solutions: `80 000`
_BARE_POINT = re.compile(r"(?<![0-9])\.(?=[0-9])")  # also where no number follows: `$560x.0.30`
_MARK = re.compile(r"<<[^<>]*>>")


def normalise(text: str) -> str:
    """Return `text` with its numbers written plainly: `1,234` as `1234`, `.5` as `0.5`; `12.5` and `4,5` stay."""
    return _BARE_POINT.sub("0.", plain_numbers(text, STYLE))


@dataclass
class GSM8K(HubDataset):
    """The data set `gsm8k`."""

    sources: ClassVar = {
        "hub": "openai/gsm8k (configuration main) of the Hugging Face hub",
        "local": "folder=<train.jsonl and test.jsonl of github.com/openai/grade-school-math>",
    }
    typical_tokens: ClassVar = (128, 219)
    licence: ClassVar = "GSM8K by OpenAI, MIT (github.com/openai/grade-school-math)"
    config: ClassVar = "main"
    prose: ClassVar = True

    name: str = redeclared(Dataset, "name", "gsm8k")
    hub: str = redeclared(HubDataset, "hub", "openai/gsm8k")
    marks: bool = option(False, "keep the calculator's marks such as <<48/2=24>> in the solutions")
    validation_size: int = option(1120, "problems drawn from train", at_least=1)
    seed: int = option(0, "seed of what is drawn", at_least=0)

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        names = ("train", "test")
        if self.source == "hub":
            problems = self.hub_splits(work, names)
            numbered = (
                ((f"{self.hub}, {name}, row {n}", row) for n, row in enumerate(split, 1))
                for name, split in zip(names, problems, strict=True)
            )
        else:
            numbered = (json_lines(published_file(Path(self.folder), f"{name}.jsonl")) for name in names)
        train, test = ([self._row(where, problem) for where, problem in split] for split in numbered)
        if self.validation_size >= len(train):
            raise DataError(
                f"validation_size: got {self.validation_size}, but train has {len(train)} problems. Choose fewer."
            )
        held_out = set(random.Random(f"{self.seed}/validation").sample(range(len(train)), self.validation_size))
        yield "test", test
        yield "validation", [train[index] for index in sorted(held_out)]
        yield "train", [row for index, row in enumerate(train) if index not in held_out]

    def _row(self, where: str, problem: Mapping[str, Any]) -> Row:
        row = check_row(problem, "number", where)
        answer = normalise(row["answer"] if self.marks else _MARK.sub("", row["answer"]))
        if "####" not in answer or not is_number(answer.rpartition("####")[2], PLAIN):
            raise DataError(f"{where}: the solution ends in {row['answer'][-40:]!r}, expected #### and a number.")
        return {"question": normalise(row["question"]), "answer": answer}
