"""rJokes (Weller and Seppi, 2020): jokes of Reddit's r/Jokes, each with the logarithm of its score, 0 to 11.

The question is the joke as it stands, the answer its score. The published train, dev and test files are training,
validation and test; without the train file (source=local), dev is divided into training and validation. Some jokes of
dev stand in the test file word for word: such questions leave validation and training, and are counted.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_prep import download
from data_prep.base import DataError, Dataset, Row, Work, published_file, short_hash, text_lines
from ntl.files import file_sha256
from ntl.options import option, redeclared

PUBLISHED = "https://raw.githubusercontent.com/orionw/rJokesData/d48bedd71bdacc7557b84ad697bf556e7aad7c21/data"
PUBLISHED_SHA256 = {
    "train": None,
    "dev": "8787317555ad6c11f27843c47aaf202ffef90a55a16f5829ef0a0bcc9ca6bde9",
    "test": "a3818c1c012e413f61179eb9f89d611a3b7091320a5137a1c3be21dbbe54a1fc",
}
VALIDATION_SHARE = 0.1  # of dev, where it serves as training as well and no validation_size is given


@dataclass
class RJokes(Dataset):
    """The data set `rjokes`."""

    sources: ClassVar = {
        "download": "the authors' train.tsv.gz, dev.tsv.gz and test.tsv.gz from GitHub (jokes can offend)",
        "local": "folder=<these files, packed or not; without the train file, dev is divided>",
    }
    typical_tokens: ClassVar = (446, 2)
    licence: ClassVar = "r/Jokes dataset, under Reddit's terms of use (github.com/orionw/rJokesData)"

    name: str = redeclared(Dataset, "name", "rjokes")
    source: str = redeclared(Dataset, "source", "download")
    train_size: int | None = option(None, "jokes drawn by seed; null: all", at_least=1)
    validation_size: int | None = option(
        None, "as train_size; where dev has to serve as training too, null is a tenth of it", at_least=1
    )
    test_size: int | None = option(None, "as train_size", at_least=1)
    seed: int = option(0, "seed of what is drawn", at_least=0)
    url: str = option(PUBLISHED, "folder of the published files", identity=False)
    sha256: dict[str, str | None] = option(
        meaning="of each published file; null: trust and record what comes",
        factory=PUBLISHED_SHA256.copy,
        identity=False,
    )

    def check(self) -> None:
        super().check()
        hashes = self.sha256 if isinstance(self.sha256, dict) else {}
        valid = all(value is None or re.fullmatch("[0-9a-f]{64}", str(value)) for value in hashes.values())
        if set(hashes) != set(PUBLISHED_SHA256) or not valid:
            raise ValueError(
                f"sha256: got {self.sha256!r}, expected 64 hexadecimal digits for each of train, dev and test, or null "
                "to trust what is downloaded."
            )

    def stamp(self) -> Any:
        return [self.url, self.sha256] if self.source == "download" else super().stamp()

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        files = self._files(work)
        test = self._draw("test", read_jokes(files["test"]), self.test_size, set())
        dev = list(read_jokes(files["dev"]))
        held_out = {row["question"] for row in test}
        if "train" in files:
            validation = self._draw("validation", dev, self.validation_size, held_out)
            train = read_jokes(files["train"])
        else:
            work.source["note"] = "no train file: dev is divided into training and validation"
            size = self.validation_size or int(VALIDATION_SHARE * len(dev))
            fresh = (row for row in dev if row["question"] not in held_out)
            validation = self._draw("validation", fresh, size, set())
            taken = set(map(id, validation))
            train = (row for row in dev if id(row) not in taken)
        yield "test", test
        yield "validation", validation
        yield "train", self._draw("train", train, self.train_size, held_out | {row["question"] for row in validation})

    def _draw(self, split: str, jokes: Iterable[Row], size: int | None, held_out: set[str]) -> list[Row]:
        """Draw `size` different jokes, none held out (None: all). Those held out follow, for `prepare` to drop."""
        rows = list(jokes)
        if size is None:
            return rows
        fresh = list({row["question"]: row for row in rows if row["question"] not in held_out}.values())
        if size > len(fresh):
            raise DataError(f"{split}_size: got {size:,}, but there are {len(fresh):,} jokes for it. Choose fewer.")
        chosen = random.Random(f"{self.seed}/{split}").sample(fresh, size)
        return chosen + [row for row in rows if row["question"] in held_out]

    def _files(self, work: Work) -> dict[str, Path]:
        """Return the published files by name, without train where the local folder has none."""
        if self.source == "download":
            folder = work.root / "downloads" / f"rjokes-{short_hash(self.url)}"
            work.source.update(url=self.url, sha256={})
            files = {}
            for name, expected in self.sha256.items():
                url = f"{self.url.rstrip('/')}/{name}.tsv.gz"
                files[name], work.source["sha256"][name] = download.fetch(url, folder, expected, work.progress)
            return files
        folder = Path(self.folder)
        packed = {name: (f"{name}.tsv.gz", f"{name}.tsv") for name in PUBLISHED_SHA256}
        if not any((folder / file).is_file() for file in packed["train"]):
            del packed["train"]
        files = {name: published_file(folder, *choices) for name, choices in packed.items()}
        work.source["sha256"] = {path.name: file_sha256(path) for path in files.values()}
        return files


def read_jokes(path: Path) -> Iterator[Row]:
    """Yield the rows of a published file, score and joke; DataError names the file and line of a bad one."""
    number = 0
    try:
        for number, line in text_lines(path):
            score, _, joke = line.partition("\t")  # a joke may hold tabs of its own
            if not re.fullmatch("[0-9]+", score) or not joke.strip():
                raise DataError(f"{path}, line {number}: got {line[:80]!r}, expected a score, a tab and a joke.")
            yield {"question": joke, "answer": score}
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read beyond line {number} ({error}). Get the file anew.") from error
