"""Synthetic records for tests, written as a run writes them, into a folder of the test's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ntl.runs import record as records
from ntl.runs.identity import ALGORITHM_VERSION, key, public, run_id

# Arms of the ablation, whole and partial: interpolation accuracy and log-MAE by seed; seeds 0 to 4 are declared.
TRAINED = {
    "ce": [(0.36, 0.41), (0.45, 0.38), (0.41, 0.40), (0.46, 0.36), (0.40, 0.39)],
    "ntl_was@0": [(0.36, 0.41), (0.45, 0.38), (0.41, 0.40), (0.46, 0.36), (0.40, 0.39)],
    "ntl_was@0.3": [(0.41, 0.35), (0.47, 0.33), (0.40, 0.36), (0.52, 0.30), (0.44, 0.33)],
    "ntl_mae@0.3": [(0.44, 0.34), (0.46, 0.36), (0.43, 0.31)],
    "gce@0.5": [(0.39, 0.36)],
    "ce/subword": [(0.21, 0.55), (0.24, 0.60), (0.19, 0.57), (0.26, 0.50), (0.22, 0.56)],
}
FAILED = {"type": "FloatingPointError", "message": "loss is NaN\nat step 120", "where": "ntl/training/train.py:1 in f"}


def metrics(accuracy: float, log_mae: float, **more: float | None) -> dict[str, float | None]:
    """One split's scores."""
    mae = 10 * log_mae
    return {"accuracy": accuracy, "log_mae": log_mae, "mae": mae, "median_absolute_error": mae / 4, **more}


def scores(interpolate: Mapping[str, Any], extrapolate: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`metrics` of a record: the trained model's as given, the untrained one's and the constants' fixed and poor."""
    constant = {"mean": metrics(0.0, 0.9), "median": metrics(0.02, 0.8), "most_frequent": metrics(0.05, 1.0)}
    states = {"trained": (interpolate, extrapolate or interpolate), "untrained": (metrics(0.0, 1.5),) * 2}
    states |= {state: (values, values) for state, values in constant.items()}
    return {
        state: {"interpolate": {"all": dict(first)}, "extrapolate": {"all": dict(second)}}
        for state, (first, second) in states.items()
    }


def everywhere(names: Iterable[str], value: float) -> dict[str, Any]:
    """`metrics` of a record in which the trained model has `value` everywhere, and everything else is poor."""
    splits = ("validation", "interpolate", "extrapolate", "test")
    states = {"trained": value} | dict.fromkeys(("untrained", "mean", "median", "most_frequent"), 0.01)
    groups = ("all", "module_a", "module_b")
    return {
        state: {split: {group: dict.fromkeys(names, number) for group in groups} for split in splits}
        for state, number in states.items()
    }


def write_record(
    results: Path,
    config: Mapping[str, Any],
    scored: Mapping[str, Any] | None = None,
    *,
    failed: Mapping[str, str] | None = None,
    data: str = "data",
    labels_per_number: float | None = None,
    algorithm_version: int = ALGORITHM_VERSION,
) -> Path:
    """Write the `record.json` of one run below `results/runs`; returns its path."""
    identity = run_id(config, data)
    if algorithm_version != ALGORITHM_VERSION:  # as an older version would have named it
        identity = identity[:-8] + hashlib.sha256(f"{identity}{algorithm_version}".encode()).hexdigest()[:8]
    content = records.blank(
        id=identity,
        status="failed" if failed else "finished",
        reason=failed,
        config=public(config),
        seed=config["seed"],
        metrics=scored or {},
        data={"name": config["dataset"]["name"], "fingerprint": data}
        | ({"training_labels": {"per_number": labels_per_number}} if labels_per_number else {}),
        model={"parameters": 915_000},
        code={"revision": None, "clean": None, "algorithm_version": algorithm_version},
        key=key(config),
    )
    path = Path(results) / "runs" / config["dataset"]["name"] / identity / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(records.to_json(records.sealed(content)))
    return path


def change(path: Path, **fields: Any) -> None:
    """Write a record with other fields, whole again."""
    path.write_bytes(records.to_json(records.sealed(json.loads(path.read_bytes()) | fields)))


def add_answers(path):
    """Give a record a file of generated answers, as finished runs have."""
    rows = [{"state": "trained", "split": "interpolate", "index": 0, "text": "7"}]
    content = records.predictions_bytes(rows)
    (path.parent / records.PREDICTIONS).write_bytes(content)
    change(path, files={records.PREDICTIONS: hashlib.sha256(content).hexdigest()})
