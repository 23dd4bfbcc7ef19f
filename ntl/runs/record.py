"""The record of a run: three files that are written whole or not at all, and checked whenever they are read.

`record.json` says what was run and what came out; `history.parquet` holds the curves, one row per step;
`predictions.parquet` the generated answers, without the questions and reference answers of the data set. A record holds
the sha256 of its other files, and a digest of itself. Nothing that a record names is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import reprlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ntl import distributed

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
RECORD, HISTORY, PREDICTIONS = "record.json", "history.parquet", "predictions.parquet"
# What a change of which can change a result; other files may be edited without making a record's revision doubtful.
CODE = ("*.py", "*.yaml", "pyproject.toml", ":!tests", ":!docs", ":!.ci")
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy", "mathematics-dataset")

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": int, "id": str, "status": str, "reason": (dict, type(None)), "config": dict, "seed": int,
    "metrics": dict, "timings": dict, "environment": dict, "data": dict, "model": dict, "code": dict, "notes": list,
    "files": dict, "key": str, "digest": str,
}  # fmt: skip
_TEXT_COLUMNS = ("split", "state", "text")
_shown = reprlib.Repr()  # of what may be of any size
_shown.maxstring = _shown.maxother = 200


class RecordError(ValueError):
    """A record that cannot be trusted: damaged, incomplete, or written by a later version."""

    AGAIN = "move its folder away and start the run again"

    def __init__(self, path: Path, problem: str, again: str = AGAIN):
        self.path, self.problem = path, problem
        super().__init__(f"{path} is not a whole record: {problem}. Restore it (git checkout, or a copy), or {again}.")


class RecordExists(RuntimeError):
    """The run already has another finished record, which is never overwritten."""


def blank(**fields: Any) -> dict[str, Any]:
    """Return a record with every field of the schema, empty where `fields` does not say otherwise."""
    empty: dict[str, Any] = {name: kind() for name, kind in _FIELDS.items() if isinstance(kind, type)}
    return empty | {"schema": SCHEMA, "reason": None} | fields


def to_json(value: Any) -> bytes:
    """Return the bytes of a record: sorted keys, null for what is not finite, a trailing newline."""
    text = json.dumps(plain(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be written as JSON with its digest, by which `is_sealed` knows it again."""
    whole = plain(content)
    return whole | {"digest": _digest(whole)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Return whether an object read from JSON is as `sealed` made it."""
    try:
        return content.get("digest") == _digest(content)
    except (ValueError, RecursionError):  # what JSON has not, such as the infinity that 1e999 reads as
        return False


def _digest(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def history_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the parquet file of a history: `step` (integer, rising) and one float column per quantity.

    Args:
        rows: one mapping per measurement, with the key "step" and any quantities. Measurements of the same step share
            a row, the later one counts; what was not measured or is not finite is null.
    """
    import pyarrow as pa

    steps: dict[int, dict[str, Any]] = {}
    for row in map(plain, rows):
        steps.setdefault(row["step"], {}).update(row)
    table = [steps[step] for step in sorted(steps)]
    columns = {"step": pa.array([row["step"] for row in table], pa.int64())}
    for name in sorted({name for row in table for name in row} - {"step"}):
        columns[name] = pa.array([row.get(name) for row in table], pa.float64())
    return _parquet(pa.table(columns))


def predictions_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the parquet file of generated answers, ordered by state, split and index.

    Args:
        rows: mappings with the keys split, state, index (row of the split), text (generated) and, if the answer may
            have been cut at the generation limit, truncated.

    Raises:
        ValueError: another key; questions and reference answers belong to the data set, not into a record.
    """
    import pyarrow as pa

    rows = sorted(rows, key=lambda row: (row["state"], row["split"], row["index"]))
    for row in rows:
        if unknown := set(row) - {"split", "state", "index", "text", "truncated"}:
            raise ValueError(f"a prediction has {sorted(unknown)}; expected split, state, index, text and truncated.")
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in _TEXT_COLUMNS}
    columns["index"] = pa.array([int(row["index"]) for row in rows], pa.int64())
    columns["truncated"] = pa.array([bool(row.get("truncated", False)) for row in rows], pa.bool_())
    return _parquet(pa.table(columns).select(["split", "state", "index", "text", "truncated"]))


def remove_leftovers(folder: Path) -> None:
    """Remove what a writer that was killed has left half written; only for the holder of the run's lease."""
    for leftover in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a record, and check it and its files.

    Args:
        path: `record.json` or its folder.

    Raises:
        FileNotFoundError: there is none.
        RecordError: it, or one of its files, is damaged, missing or not what was written; the message names the file
            and says what to do.
    """
    return _read_whole(Path(path))[0]


def _read_whole(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return a record and its files by name, itself last."""
    path = path / RECORD if path.is_dir() else path
    content = path.read_bytes()
    record = _parsed(path, content)
    if found := problem(record, path.parent.name):
        raise RecordError(path, found)
    files = {name: _read_file(path.parent, name, digest) for name, digest in record["files"].items()}
    return record, files | {RECORD: content}


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds. Raises as `read_record` does."""
    return _parsed(path, path.read_bytes())


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(path, f"it does not read as JSON ({error})") from error


def read_records(results_root: str | Path = "results") -> tuple[list[dict[str, Any]], list[RecordError]]:
    """Read every record below `<results_root>/runs`, sorted by id; the damaged ones come as the errors they raise."""
    records, errors = [], []
    for path in sorted((Path(results_root) / "runs").glob(f"*/*/{RECORD}")):
        try:
            records.append(read_record(path))
        except RecordError as error:
            errors.append(error)
    return sorted(records, key=lambda record: record["id"]), errors


def read_whole(folder: Path) -> dict[str, bytes]:
    """Return the files of a record by name, itself last. Raises as `read_record` does."""
    return _read_whole(folder)[1]


def read_history(folder: str | Path) -> pd.DataFrame:
    """Read a run's curves: a column `step` and one per quantity. Raises as `read_record` does."""
    return _read_table(Path(folder), HISTORY)


def read_predictions(folder: str | Path) -> pd.DataFrame:
    """Read a run's generated answers: split, state, index, text, truncated. Raises as `read_record` does."""
    return _read_table(Path(folder), PREDICTIONS)


def environment() -> dict[str, Any]:
    """Return what a result may depend on beyond the configuration: versions, processor, threads, GPU. No names."""
    torch = sys.modules.get("torch")  # a run without it need not load it
    gpus = []
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processes": distributed.size(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus,
        "cuda": torch.version.cuda if gpus else None,
    }


def code_state(repository: str | Path | None = None) -> dict[str, Any]:
    """Return `{"revision": commit, "clean": whether the code is as committed}`; None for both outside of git.

    Only `CODE` counts: editing the documentation, or new records, leave the code clean.

    Args:
        repository: root of the checkout; by default the one that holds this package.
    """
    root = Path(repository or Path(__file__).parents[2]).resolve()
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != root:  # installed inside of somebody else's repository
            return {"revision": None, "clean": None}
        changed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *CODE)
        return {"revision": _git(root, "rev-parse", "HEAD"), "clean": not changed}
    except (OSError, subprocess.SubprocessError):
        return {"revision": None, "clean": None}


def problem(record: Any, folder: str) -> str | None:
    """Say what is wrong with the content of a record that lies in `folder`, or None."""
    if not isinstance(record, dict):
        return f"it holds a {type(record).__name__} where an object is expected"
    if record.get("schema") != SCHEMA:
        return f"its schema is {_shown.repr(record.get('schema'))}, and this version reads {SCHEMA}"
    for name, kind in _FIELDS.items():
        if name not in record:
            return f"the field {name!r} is missing"
        if not isinstance(record[name], kind) or isinstance(record[name], bool):
            return f"the field {name!r} holds a {type(record[name]).__name__}"
    if record["id"] != folder:
        return f"it is the record of {_shown.repr(record['id'])}, but lies in the folder {folder!r}"
    if record["status"] not in ("finished", "failed"):
        return f"its status is {_shown.repr(record['status'])}, and finished or failed are expected"
    if record["status"] == "failed" and not record["reason"]:
        return "it failed without a reason"
    for name, kinds in {"algorithm_version": int, "revision": (str, type(None))}.items():
        if name in record["code"] and (not isinstance(found := record["code"][name], kinds) or isinstance(found, bool)):
            return f"code.{name} holds a {type(found).__name__}"
    if not isinstance(found := record["data"].get("fingerprint"), (str, type(None))):
        return f"data.fingerprint holds a {type(found).__name__}"
    if unknown := sorted(set(record["files"]) - {HISTORY, PREDICTIONS}):
        return f"it names a file {_shown.repr(unknown[0])}, and {HISTORY} and {PREDICTIONS} are expected"
    for where, value in leaves(record["metrics"], depth=4):
        items = value if isinstance(value, list) else [value]  # a list: by place of the digit
        if not all(item is None or is_finite_number(item) for item in items):
            return f"metrics.{where[:200]} is {_shown.repr(value)}, and a number or null is expected"
    if not is_sealed(record):
        return "its content has changed since it was written (the digest does not match)"
    return None


def is_finite_number(value: Any) -> bool:
    """Return whether a value from JSON is a number that a float can hold; 1e999 is infinite, and true is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def leaves(node: Any, depth: int, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what lies `depth` mappings deep, with its dotted place; what is no mapping before that, as it is."""
    if depth == 0 or not isinstance(node, dict):
        yield where, (node if depth == 0 else f"{_shown.repr(node)} instead of an object")
        return
    for key, value in node.items():
        yield from leaves(value, depth - 1, f"{where}.{key}" if where else key)


def _read_table(folder: Path, name: str) -> pd.DataFrame:
    files = read_whole(folder)
    if name not in files:
        raise RecordError(folder / name, "the record names no such file")
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_parquet(io.BytesIO(files[name]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordError(folder / name, f"it does not read as parquet ({str(error)[:500]})") from error


def _read_file(folder: Path, name: str, digest: Any) -> bytes:
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError as error:
        raise RecordError(folder / name, "it is missing") from error
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise RecordError(folder / name, f"its sha256 is {found}, and the record says {_shown.repr(digest)}")
    return content


def _parquet(table: Any) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Return `value` in the types of JSON; numbers of numpy and torch become Python's, not finite ones None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return plain(value.tolist())
    raise TypeError(f"a record cannot hold {value!r} of type {type(value).__name__}; give a number, text or a list.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    with contextlib.suppress(OSError):  # Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str:
    # Variables such as GIT_DIR, set inside of hooks, would point to another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=variables)
    return done.stdout.strip()
