"""What every data set shares: checks, atomic preparation, the manifest, and the removal of leaked questions.

A data set is one module `data_prep/<name>.py` with one dataclass, whose fields are its options, and one
`conf/dataset/<name>.yaml` that names it as `_target_`. The class says where its rows come from (`produce`).

Nothing in this package imports torch, so that `python -m data_prep --help` and a misspelt option are answered at once.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ntl import options
from ntl.files import durable, file_sha256
from ntl.number_grammar import parse_number
from ntl.options import option
from ntl.runs.identity import checked_name
from ntl.text import expected_one_of, suggestion

CONF = Path(__file__).resolve().parents[1] / "conf" / "dataset"
FORMAT = 1  # raised when the same options come to mean other rows: data prepared before are then prepared anew
Row = dict[str, str]


class DataError(ValueError):
    """Data that cannot be used: the message says what was got, what was expected, and what to do."""


def one_of(option: str, got: Any, known: Iterable[str]) -> None:
    """Raise ValueError unless the value `got` of `option` is one of `known`."""
    known = list(known)
    if got not in known:
        raise ValueError(f"{option}: got {got!r}, {expected_one_of(got, known)}")


def short_hash(value: Any, length: int = 8) -> str:
    """Return the first digits of a hash over a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def check_row(row: Any, answers: str, where: str) -> Row:
    """Return `row` if it is a mapping of texts with a question and an answer (with a number if `answers` says so)."""
    if not isinstance(row, Mapping):
        raise DataError(f'{where}: got {type(row).__name__}, expected an object like {{"question": …, "answer": …}}.')
    for key in ("question", "answer"):
        if not isinstance(row.get(key), str):
            raise DataError(f"{where}: `{key}` is {row.get(key)!r}, expected a text. Correct or remove this row.")
        if half_character(row[key]):
            raise DataError(f"{where}: `{key}` holds half a character (a lone surrogate). Correct or remove this row.")
    if not row["question"].strip():
        raise DataError(f"{where}: the question is empty. Correct or remove this row.")
    if answers == "number" and parse_number(row["answer"]) is None:
        raise DataError(
            f"{where}: the answer {row['answer']!r} holds no number, but the answers of this data set must be numbers, "
            "written as docs/numbers.md says. Correct or remove this row, or use a data set of texts."
        )
    return dict(row)


def half_character(text: str) -> bool:
    """Return whether a text holds a lone surrogate, as JSON's `\\ud800` makes one; UTF-8 cannot write it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers (from 1) and texts of a UTF-8 file's lines, unpacked if its name ends in `.gz`.

    Raises DataError for a line that is no UTF-8, by its number.
    """
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}). Save the file as UTF-8.") from None


def published_file(folder: Path, *names: str) -> Path:
    """Return the first of the named files that `folder` holds; DataError if it holds none."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder / names[0]}: missing. Put the published file there, or choose another source.")


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where it stands, as `file, line n`, and the value of each line of JSON; DataError names one that is not."""
    for number, line in text_lines(path):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, or too deep
            why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise DataError(
                f"{where}: not JSON ({why}): {line.strip()[:80]!r}. Expected one object a line; correct or remove this "
                "line."
            ) from None


def read_jsonl(path: Path, answers: str = "text") -> Iterator[Row]:
    """Yield the checked rows of a file with one JSON object a line; DataError names the file and line of a bad one."""
    for where, row in json_lines(path):
        yield check_row(row, answers, where)


@dataclass
class Work:
    """What `Dataset.produce` may use, and where it leaves what the manifest is to tell."""

    root: Path  # of all data sets; downloads lie below it
    progress: bool = True
    source: dict[str, Any] = field(default_factory=dict)  # about the source: versions, seed, hashes of downloads
    counts: dict[str, Any] = field(default_factory=dict)  # whatever else was counted on the way
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # closed however the work ends


@dataclass(frozen=True)
class PreparedData:
    """A prepared data set whose files have been verified against its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, answers: str = "text") -> PreparedData:
        """Read a prepared folder; DataError if a file is missing or its sha256 is not the manifest's."""
        path = folder / "manifest.json"
        again = f"Remove the folder {folder} to have it prepared anew, or put the original file back."
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            files = {name: entry["sha256"] for name, entry in manifest["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: no readable manifest ({error}). {again}") from error
        for name, expected in files.items():
            if not (folder / name).is_file():
                raise DataError(f"{folder / name}: missing, expected a file with sha256 {expected}. {again}")
            got = file_sha256(folder / name)
            if got != expected:
                raise DataError(
                    f"{folder / name}: the hash does not match; got sha256 {got}, expected {expected} (manifest.json). "
                    f"The file has changed since it was prepared. {again}"
                )
        return cls(folder, manifest)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits: train, validation, then the test splits."""
        return tuple(self.manifest["sizes"])

    @property
    def fingerprint(self) -> str:
        """Hash of the content: of the splits' names and sha256, whatever options or source they came from."""
        return content_fingerprint({name: self.manifest["files"][f"{name}.jsonl"]["sha256"] for name in self.splits})

    def rows(self, split: str) -> list[Row]:
        """Return the rows of a split: dictionaries with `question`, `answer` and what else the data set tells."""
        one_of("split", split, self.splits)
        return list(read_jsonl(self.folder / f"{split}.jsonl", self.manifest["answers"]))


def content_fingerprint(hashes: Mapping[str, str]) -> str:
    """Return one sha256 for several files, given as name to sha256."""
    return hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()


@dataclass
class Dataset:
    """Base of all data sets. A subclass gives the class variables and `produce`, and extends `check`."""

    sources: ClassVar[Mapping[str, str]] = {}  # what `source` may be, each with a line for the help
    licence: ClassVar[str] = ""
    answers: ClassVar[str] = "number"  # "number": every answer holds one; "text"
    prose: ClassVar[bool] = False  # whether answers are written out around their number, as solutions are
    test_splits: ClassVar[tuple[str, ...]] = ("test",)
    # Tokens of the longest question and answer in 32 rows (T5's, digits apart), for plans before the data is prepared.
    typical_tokens: ClassVar[tuple[int, int]] = (100, 20)

    name: str = option(meaning="names the runs and their folder: letters, digits, _ and .")
    source: str = option("generator", "where the rows come from", identity=False)
    folder: str | None = option(None, "of source=local", identity=False)

    def check(self) -> None:
        """Raise ValueError if the options cannot be meant (cheap; before any work)."""
        checked_name({"dataset": {"name": self.name}}, "dataset")  # it names a folder, and must not lead out of it
        options.check(self)
        one_of("source", self.source, self.sources)
        if self.source == "local":
            if not self.folder:
                raise ValueError("source=local: got no folder, expected folder=<path of the data>.")
            if not Path(self.folder).is_dir():
                raise ValueError(f"folder: got {self.folder!r}, which is no folder; expected the path of the data.")

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        """Yield each split's name and rows: the test splits first, then validation, then train.

        In this order because what stands in a test split must be known before validation and training are written,
        which may be too large to hold.
        """
        raise NotImplementedError

    def stamp(self) -> Any:
        """Return what tells one state of the source from another, beside the options (JSON-able).

        For source=local the names, sizes and times of the folder's files, so that an edited file is prepared anew.
        """
        if self.source != "local" or not self.folder:
            return None
        root = Path(self.folder).resolve()
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return [[path.relative_to(root).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]

    # What follows is the same for all data sets.

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "validation", *self.test_splits)

    def options(self) -> dict[str, Any]:
        """Return the options that can change the rows, as JSON-able values."""
        names = [name for name, declared in options.options_of(type(self)).items() if declared.identity]
        return json.loads(json.dumps({name: getattr(self, name) for name in names}))

    def location(self, root: Path) -> Path:
        """Return the folder in which these options are prepared: one for each set of options, source and format."""
        key = short_hash([FORMAT, self.options(), self.source, self.stamp()])
        return Path(root) / self.name / key

    def prepare(self, root: str | os.PathLike = "data", progress: bool = True) -> PreparedData:
        """Return the prepared data below `root`, preparing them on first use and verifying them on every use.

        Two processes that prepare at once end with one folder; an interrupted one leaves no half-made folder.
        """
        self.check()
        folder = self.location(Path(root))
        try:
            if not (folder / "manifest.json").exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                with locked(folder.parent / f".{folder.name}.lock", f"another process to prepare {self.name}"):
                    if not (folder / "manifest.json").exists():
                        self._prepare(folder, progress)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            wrong = "The disk is full: make room there" if full else "Expected readable sources and a writable folder"
            raise DataError(
                f"{self.name}: cannot prepare the data in {folder}: {error}. {wrong}, "
                "or choose another place (`--root` of python -m data_prep, `paths.data` of run.py)."
            ) from error
        return PreparedData.load(folder, self.answers)

    def _prepare(self, folder: Path, progress: bool) -> None:
        if folder.exists():
            raise DataError(f"{folder}: exists without a manifest.json. Remove it to have it prepared anew.")
        for left in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed: we hold the lock
            shutil.rmtree(left)
        work = Work(root=folder.parents[1], progress=progress)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary, work.cleanup:
            made = Path(temporary) / "data"
            made.mkdir()
            written = self._write_splits(made, self._rows(work), work)
            manifest = {
                "format": FORMAT,
                "dataset": self.name,
                "options": self.options(),
                "source": {"kind": self.source, **work.source},
                "answers": self.answers,
                **written,
                "counts": work.counts,
                "licence": self.licence,
            }
            with durable(made / "manifest.json") as file:
                file.write(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
            os.replace(made, folder)

    def _rows(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        """`produce`, or the splits of a local folder that holds prepared data already."""
        folder = Path(self.folder) if self.source == "local" and self.folder else None
        if folder is None or not all((folder / f"{name}.jsonl").is_file() for name in self.splits):
            return self.produce(work)
        if (folder / "manifest.json").exists():
            theirs = PreparedData.load(folder).manifest
            ours = {"dataset": self.name, **self.options()}
            for option, value in {"dataset": theirs.get("dataset"), **theirs.get("options", {})}.items():
                if option in ours and ours[option] != value:
                    raise DataError(
                        f"{folder / 'manifest.json'}: prepared with {option}={value!r}, but asked for is "
                        f"{option}={ours[option]!r}. Set the option to the folder's value, or prepare from the source."
                    )
        else:
            work.source["note"] = "ready-made splits: modules and sizes are the folder's, whatever the options say"
        return (
            (name, read_jsonl(folder / f"{name}.jsonl", self.answers))
            for name in (*self.test_splits, "validation", "train")
        )

    def _write_splits(self, folder: Path, splits: Iterable[tuple[str, Iterable[Row]]], work: Work) -> dict[str, Any]:
        """Write each split as jsonl; questions that stand in a split written before leave this one, and are counted."""
        held_out: dict[str, str] = {}  # question -> the test or validation split in which it stands
        sizes, files = dict.fromkeys(self.splits, 0), {}
        dropped: dict[str, Counter] = {"train": Counter(), "validation": Counter()}
        repeated: dict[str, int] = dict.fromkeys(self.splits, 0)
        for split, rows in splits:
            if split in files:
                raise AssertionError(f"{type(self).__name__}.produce gave the split {split} twice")
            seen: set[bytes] = set()
            path = folder / f"{split}.jsonl"
            with durable(path) as file:
                for index, row in enumerate(rows, 1):
                    row = check_row(row, self.answers, f"{self.name}, {split}, row {index}")
                    question = row["question"]
                    if split in dropped and question in held_out:
                        dropped[split][held_out[question]] += 1
                        continue
                    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()  # compact: training is large
                    repeated[split] += digest in seen
                    seen.add(digest)
                    if split != "train":
                        held_out.setdefault(question, split)
                    sizes[split] += 1
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if not sizes[split]:
                raise DataError(
                    f"{self.name}: the split {split} is empty"
                    + (f", all its questions stand in others ({dict(dropped[split])})" if dropped.get(split) else "")
                    + ". Choose larger sizes or other modules."
                )
            files[path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        missing = [name for name in self.splits if f"{name}.jsonl" not in files]
        if missing:
            raise AssertionError(f"{type(self).__name__}.produce gave no split {', '.join(missing)}")
        return {
            "sizes": sizes,
            "files": {f"{name}.jsonl": files[f"{name}.jsonl"] for name in self.splits},
            "dropped": {name: dict(counter) for name, counter in dropped.items()},
            "repeated": repeated,
        }


@contextlib.contextmanager
def locked(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold a lock file, saying so when another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        print(f"Waiting for {waiting_for} ({path}) …", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def progress_bar(title: str, total: int | None, shown: bool, unit: str = "questions") -> Iterator[Any]:
    """Show a progress bar on the standard error while in the block; yields a function to call with each advance."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    times = (TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, *times, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


# Discovery: a data set is a module here plus a yaml of the same name.


def names() -> list[str]:
    """Return the names of all data sets."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(modules & {path.stem for path in CONF.glob("*.yaml")})


def dataset_class(name: str) -> type[Dataset]:
    """Return the class of the data set `name`."""
    if name not in names():
        raise ValueError(f"data set: got {name!r}, which does not exist; {suggestion(name, names())}")
    module = importlib.import_module(f"data_prep.{name}")
    (found,) = [
        item
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, Dataset) and item.__module__ == module.__name__
    ]
    return found


def load(name: str, overrides: Sequence[str] = ()) -> Dataset:
    """Return the data set `name` with its declared options, overridden by its yaml and by `key=value` texts."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    cls = dataset_class(name)
    node = OmegaConf.merge(options.defaults(cls), OmegaConf.load(CONF / f"{name}.yaml"))
    known = [key for key in options.options_of(cls) if key != "name"]
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise ValueError(f"option: got {override!r}, expected key=value; keys of {name}: {', '.join(known)}.")
        if key.split(".")[0] not in known:
            raise ValueError(f"option: got {key!r}, which {name} does not have; {suggestion(key, known)}")
        try:
            node = OmegaConf.merge(node, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ValueError(f"option: cannot read {override!r} ({error}); expected key=value in YAML.") from error
    values = OmegaConf.to_container(node, resolve=True)
    values.pop("_target_", None)
    return cls(**values)
