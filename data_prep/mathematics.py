"""The DeepMind mathematics data (Saxton et al., 2019): the 13 training and 7 extrapolation modules of the paper.

Training questions come at three difficulties. The official interpolation test is drawn from the training modules at
one fixed entropy within the training range, the official extrapolation test from modules with larger or longer numbers.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_prep import download, generator
from data_prep.base import (
    DataError,
    Dataset,
    Row,
    Work,
    check_row,
    one_of,
    progress_bar,
    text_lines,
)
from ntl.files import file_sha256
from ntl.options import option, redeclared

DIFFICULTIES = ("easy", "medium", "hard")
TRAINING = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__sequence_next_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_sub_multiple",
    "arithmetic__mul",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__place_value",
    "numbers__round_number",
    "numbers__round_number_composed",
)
EXTRAPOLATION = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
PUBLISHED = "https://storage.googleapis.com/mathematics-dataset/mathematics_dataset-v1.0.tar.gz"
PUBLISHED_SHA256 = "def638343403cb9ed60437d6b684c859dd23b72779f5cc5661b0a31e67c58576"  # 2,333,082,954 bytes


@dataclass(frozen=True)
class Part:
    """Questions of one split from one module: an official file, or its part of the generator."""

    split: str
    module: str
    regime: str  # as the official folders are called
    size: int | None  # None: all that a file holds

    @property
    def labels(self) -> Row:
        group, _, difficulty = self.regime.partition("-")
        return {"module": self.module} | ({"difficulty": difficulty} if group == "train" else {})


@dataclass
class Mathematics(Dataset):
    """The data set `mathematics`. Sizes count questions of one module (at one difficulty)."""

    sources: ClassVar = {
        "generator": "the official generator, mathematics-dataset 1.0.1 from PyPI",
        "download": "the published v1.0 files, a download of 2.3 GB (resumed when interrupted, checked by sha256)",
        "local": "folder=<the published layout: train-easy/MODULE.txt, …, interpolate/, extrapolate/; or jsonl splits>",
    }
    typical_tokens: ClassVar = (101, 13)
    licence: ClassVar = "DeepMind Mathematics Dataset, Apache-2.0 (github.com/google-deepmind/mathematics_dataset)"
    test_splits: ClassVar = ("interpolate", "extrapolate")

    name: str = redeclared(Dataset, "name", "mathematics")
    modules: Sequence[str] = option(TRAINING, "official training modules")
    difficulties: Sequence[str] = option(DIFFICULTIES, "of training and validation")
    interpolation: Sequence[str] | None = option(
        None, "official modules, or MODULE@DIFFICULTY for fresh questions; null: the official test of `modules`"
    )
    extrapolation: Sequence[str] = option(EXTRAPOLATION, "official modules, or MODULE@DIFFICULTY")
    train_size: int | None = option(
        2000, "questions of each module at each difficulty; null (published files only): all", at_least=1
    )
    validation_size: int = option(40, "as train_size", at_least=1)
    test_size: int | None = option(100, "questions of each test module; null (published files only): all", at_least=1)
    seed: int = option(0, "seed of what is drawn", at_least=0)
    workers: int | None = option(None, "processes that generate; null: one for each core", at_least=1, identity=False)
    url: str = option(PUBLISHED, "the published archive", identity=False)
    sha256: str | None = option(PUBLISHED_SHA256, "of the archive; null: trust and record what comes", identity=False)

    def __post_init__(self) -> None:
        for name in ("modules", "difficulties", "extrapolation", "interpolation"):
            value = getattr(self, name)
            if isinstance(value, str | Sequence):  # other types are refused by `check`
                setattr(self, name, [value] if isinstance(value, str) else list(value))

    def check(self) -> None:
        super().check()
        for name, known in {"modules": TRAINING, "difficulties": DIFFICULTIES}.items():
            values = getattr(self, name)
            for value in values:
                one_of(name, value, known)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}: got {values}, expected at least one of {', '.join(known)}, none twice.")
        for name, official in {"interpolation": TRAINING, "extrapolation": EXTRAPOLATION}.items():
            values = getattr(self, name)
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ValueError(f"{name}: got {values}, expected at least one module, none twice.")
            for value in values or ():
                module, at, difficulty = value.partition("@")
                one_of(name, module, TRAINING if at else official)
                if at:
                    one_of(f"{name} ({value})", difficulty, DIFFICULTIES)
        for name in ("train_size", "test_size"):
            if getattr(self, name) is None and self.source == "generator":
                raise ValueError(f"{name}: got None, expected an integer of at least 1: the generator has no end.")
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", str(self.sha256)):
            raise ValueError(
                f"sha256: got {self.sha256!r}, expected 64 hexadecimal digits, or null to trust the download."
            )

    def stamp(self) -> Any:
        return [self.url, self.sha256] if self.source == "download" else super().stamp()

    def parts(self) -> list[Part]:
        """Return what makes up the splits, the test splits first."""
        parts = []
        tests = {"interpolate": self.interpolation or self.modules, "extrapolate": self.extrapolation}
        for split, modules in tests.items():
            for named in modules:
                module, at, difficulty = named.partition("@")
                parts.append(Part(split, module, f"train-{difficulty}" if at else split, self.test_size))
        for split, size in {"validation": self.validation_size, "train": self.train_size}.items():
            for module, difficulty in itertools.product(self.modules, self.difficulties):
                parts.append(Part(split, module, f"train-{difficulty}", size))
        return parts

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        rows = self._generate(work) if self.source == "generator" else self._read(self._files(work))
        for split, group in itertools.groupby(rows, key=lambda item: item[0].split):
            split_rows: Iterable[Row] = ({"question": q, "answer": a, **part.labels} for part, q, a in group)
            if split != "train":  # so that the first n are a mixture; the training split may be too large to hold
                split_rows = list(split_rows)
                random.Random(f"{self.seed}/{split}").shuffle(split_rows)
            yield split, split_rows

    def _generate(self, work: Work) -> Iterator[tuple[Part, str, str]]:
        work.source.update(generator.versions(), seed=self.seed)
        skipped: dict[str, Counter] = {}
        parts = self.parts()
        owner = {(part.split, part.regime, part.module): part for part in parts}
        draws = [generator.Draw(*key, part.size) for key, part in owner.items()]
        total = sum(part.size for part in parts)
        advance = work.cleanup.enter_context(progress_bar(f"Generating {self.name}", total, work.progress))
        chunks = generator.generate(draws, self.seed, self.workers)
        work.cleanup.callback(chunks.close)  # ends the workers when the writing is interrupted
        for chunk, made in chunks:
            part = owner[chunk.stream, chunk.regime, chunk.module]
            skipped.setdefault(chunk.module, Counter()).update(made["skipped"])
            for question, answer in made["rows"]:
                yield part, question, answer
            advance(chunk.count)
        work.counts["drawn_again"] = {module: dict(counter) for module, counter in skipped.items() if counter}

    def _files(self, work: Work) -> Path:
        """Return the folder of the published files, downloaded if that is the source."""
        wanted = sorted({f"{part.regime}/{part.module}.txt" for part in self.parts()})
        if self.source == "download":
            downloads = work.root / "downloads"
            archive, found = download.fetch(self.url, downloads, self.sha256, work.progress)
            folder = download.extract(archive, wanted, downloads / f"mathematics-{found[:8]}")
            work.source.update(url=self.url, sha256=found, checked=self.sha256 is not None)
        else:
            folder = Path(self.folder)
            for name in wanted:
                if not (folder / name).is_file():
                    raise DataError(
                        f"{folder / name}: missing; expected the published layout (train-easy/MODULE.txt, …)."
                    )
        work.source["files"] = {name: file_sha256(folder / name) for name in wanted}
        return folder

    def _read(self, folder: Path) -> Iterator[tuple[Part, str, str]]:
        """Draw the parts from the published files, by seed; no line is drawn for two parts."""
        taken: dict[tuple[str, str], set[int]] = {}
        for part in self.parts():
            path = folder / part.regime / f"{part.module}.txt"
            used = taken.setdefault((part.regime, part.module), set())
            free = [index for index in range(count_questions(path)) if index not in used]
            size = len(free) if part.size is None else part.size
            if not 0 < size <= len(free):
                raise DataError(
                    f"{path}: {part.split} needs {part.size or 'some'} questions, but the file has {len(free)} left. "
                    "Choose smaller sizes."
                )
            chosen = set(random.Random(f"{self.seed}/{part.split}/{part.regime}/{part.module}").sample(free, size))
            used |= chosen
            for index, (question, answer) in enumerate(read_pairs(path, self.answers)):
                if index in chosen:
                    yield part, question, answer


def count_questions(path: Path) -> int:
    """Return the number of questions in a published file: lines of questions and answers in turn."""
    with open(path, "rb") as file:
        lines = sum(1 for _ in file)
    if lines % 2:
        raise DataError(f"{path}, line {lines}: a question without an answer; expected questions and answers in turn.")
    return lines // 2


def read_pairs(path: Path, answers: str = "text") -> Iterator[tuple[str, str]]:
    """Yield the questions and answers of a published file; DataError names the file and line of a bad one."""
    lines = text_lines(path)
    for (number, question), (_, answer) in zip(lines, lines, strict=True):
        check_row({"question": question, "answer": answer}, answers, f"{path}, lines {number} and {number + 1}")
        yield question, answer
