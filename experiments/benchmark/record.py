"""The record of what the losses cost: `runtime/<machine>.json` holds every round that `costs` measured.

It is written to outputs/; `python -m experiments publish runtime` copies it to results/.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.benchmark.settings import LIGER, LINEAR, NTLOSS, PARTS, BenchmarkSettings

FOLDER = "runtime"  # below outputs or results
RENAMED = {  # options of the methods that older records name
    "train.fused=logits": "train.loss_implementation=fused",
    "train.fused=off": "train.loss_implementation=plain",
}


def run(
    settings: BenchmarkSettings, outputs: Path, results: Path | None = None, say: Callable[[str], None] = print
) -> Path:
    """Measure and write the record below `outputs`; returns its path.

    A quick record stands beside the full one, never in its place. Parts that are not measured stay as this machine's
    record in `outputs`, or else the published one in `results`, has them.
    """
    import torch

    from experiments.benchmark.costs import liger_loss, measure
    from ntl.files import write_atomically
    from ntl.runs.record import code_state, environment, to_json

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = os.getloadavg()[0]
    start = time.perf_counter()
    measured = measure(settings, device, say)
    machine = environment()
    notes = []
    if liger_loss() is None:
        notes.append("Liger's fused linear cross-entropy needs its package, Triton and a GPU: not measured.")
    if not any(NTLOSS in row["method"] for row in measured):
        notes.append("The package ntloss is not installed: not measured.")
    record = {
        "schema": 1,
        "environment": machine | {"ntloss": _version("ntloss"), "liger_kernel": _version("liger-kernel")},
        "code": code_state(),
        "device": device,
        "quick": settings.quick,
        "seconds": round(time.perf_counter() - start, 1),
        "load": {"before": round(before, 2), "after": round(os.getloadavg()[0], 2)},
        "measurements": measured,
        "notes": notes,
    }
    name = (machine["gpus"] or [machine["cpu"]])[0]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{name} {machine['threads']} threads".lower()).strip("-")
    path, *published = (
        Path(root) / FOLDER / f"{slug}{'-quick' if settings.quick else ''}.json"
        for root in (outputs, results)
        if root is not None
    )
    before = next((file for file in (path, *published) if file.exists()), None)
    if before and set(settings.parts) != set(PARTS):
        kept = [row for row in read(before)["measurements"] if row["part"] not in settings.parts]
        record["measurements"] = sorted(kept + measured, key=lambda row: PARTS.index(row["part"]))
    write_atomically(path, to_json(record))
    return path


def publish(outputs: Path, results: Path) -> tuple[list[str], list[str]]:
    """Copy the full records of what the losses cost, in place of older ones of the same machines.

    Returns:
        The names of the machines whose record is new in `results`, and of those whose record was there already.

    Raises:
        RecordError: a record is damaged.
    """
    from ntl.files import write_atomically

    new, known = [], []
    for path in sorted((outputs / FOLDER).glob("*.json")):
        if read(path)["quick"]:
            continue
        content, target = path.read_bytes(), results / FOLDER / path.name
        if target.exists() and target.read_bytes() == content:
            known.append(path.stem)
        else:
            write_atomically(target, content)
            new.append(path.stem)
    return new, known


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load(results: Path) -> dict[str, dict[str, Any]]:
    """The full records by machine; a quick one only where there is no full one."""
    paths = sorted((results / FOLDER).glob("*.json"))
    full = [path for path in paths if not path.stem.endswith("-quick")]
    return {path.stem: read(path) for path in full or paths}


def read(path: Path) -> dict[str, Any]:
    """Read and check one machine's record.

    Raises:
        RecordError: it is damaged or incomplete.
    """
    from ntl.runs.record import RecordError, read_json

    try:
        record = read_json(path)
        found = problem(record)
    except RecordError as error:
        found = error.problem
    if found:
        raise RecordError(path, found, "remove it and measure again (python -m experiments runtime)")
    for row in record["measurements"]:
        for old, new in RENAMED.items():
            row["method"] = row["method"].replace(old, new)
    return record


NUMBER, OPTIONAL = (int, float), (int, float, type(None))
_FIELDS = {"schema": int, "environment": dict, "device": str, "quick": bool, "load": dict, "measurements": list,
           "notes": list}  # fmt: skip
_ENVIRONMENT = {"gpus": list, "cpu": str, "threads": (int, type(None)), "packages": dict, "ntloss": (str, type(None))}
_ROW = {"part": str, "method": str, "vocabulary": str, "dtype": str, "tokens": int, "columns": int, "numbers": NUMBER,
        "seconds": list, "memory_mib": OPTIONAL}  # fmt: skip


def problem(record: Any) -> str | None:
    """Say what is wrong with the content of a record of costs, or None."""
    from ntl.runs.record import is_finite_number

    if found := _mismatch(record, _FIELDS, "it"):
        return found
    if found := _mismatch(record["environment"], _ENVIRONMENT, "environment"):
        return found
    if found := _mismatch(record["load"], {"before": NUMBER, "after": NUMBER}, "load"):
        return found
    if not all(isinstance(text, str) for text in (*record["notes"], *record["environment"]["gpus"])):
        return "notes and environment.gpus hold something that is no text"
    for number, row in enumerate(record["measurements"]):
        if found := _mismatch(row, _ROW, f"measurements[{number}]"):
            return found
        if row["part"] not in PARTS:
            return f"measurements[{number}].part is none of {', '.join(PARTS)}"
        times = row["seconds"]
        if not times or not all(is_finite_number(time) and time > 0 for time in times):
            return f"measurements[{number}].seconds are {times!r:.200}, and positive numbers are expected"
    for part in PARTS:
        for rows in groups(record, part):
            if len({len(row["seconds"]) for row in rows}) > 1:
                return f"measurements of {part} that were made in turn differ in their number of rounds"
    return None


def _mismatch(value: Any, kinds: Mapping[str, Any], where: str) -> str | None:
    """Say which key of a mapping is missing or of another kind (a number must be finite and not negative), or None."""
    from ntl.runs.record import is_finite_number

    if not isinstance(value, dict):
        return f"{where} holds a {type(value).__name__} where an object is expected"
    for name, kind in kinds.items():
        found = value.get(name)
        if name not in value or not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            return f"{where} holds no {name}" if name not in value else f"{where}: {name} is a {type(found).__name__}"
        if isinstance(found, NUMBER) and kind is not bool and not (is_finite_number(found) and found >= 0):
            return f"{where}: {name} is no finite number of at least 0"
    return None


def groups(record: Mapping[str, Any], part: str) -> list[list[dict[str, Any]]]:
    """The measurements of one part that were made in turn, baseline first."""
    found: dict[tuple, list[dict[str, Any]]] = {}
    for row in record["measurements"]:
        if row["part"] == part:
            head = row["method"].startswith("head + ") or row["method"] in (LINEAR, LIGER)
            key = (row["vocabulary"], row["tokens"], row["numbers"], row["dtype"], head)
            found.setdefault(key, []).append(row)
    return list(found.values())


def ratios(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[float]:
    """Time by round, divided by the baseline's in the same round."""
    return [one / other for one, other in zip(row["seconds"], baseline["seconds"], strict=True)]
