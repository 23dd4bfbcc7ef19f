"""Publishing: finished records, of runs and of costs, are copied from a user's outputs to the published results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.collect import Copied, copy_record
from experiments.benchmark import record as costs
from experiments.config.compose import ConfigurationError, did_you_mean
from ntl.runs.record import RECORD, RecordError, read_record


def publish(runs: Sequence[str], outputs: Path, results: Path) -> Copied:
    """Copy the records of finished runs (record, history and predictions) to `results/runs`.

    Args:
        runs: ids of runs below `outputs/runs`, folders of runs, or "runtime" for the measured costs of the losses.

    Raises:
        ConfigurationError: an id or folder that is no recorded run; nothing has been copied then.
    """
    copied = Copied()
    folders = [_folder(run, outputs) for run in runs if run != costs.FOLDER]
    if costs.FOLDER in runs:
        new, known = costs.publish(outputs, results)
        if not new and not known:
            raise ConfigurationError(
                f"got {costs.FOLDER}, and {outputs / costs.FOLDER} holds no full record; measure with "
                "python -m experiments runtime"
            )
        copied.new += new
        copied.known += known
    for folder in folders:
        try:
            if read_record(folder)["status"] != "finished":
                copied.problems.append(f"{folder.name}: it has failed, and only finished runs are published")
            else:
                copy_record(folder, results / "runs" / folder.parent.name / folder.name, copied)
        except RecordError as error:
            copied.problems.append(str(error))
    return copied


def _folder(run: str, outputs: Path) -> Path:
    recorded = {path.parent.name: path.parent for path in (outputs / "runs").glob(f"*/*/{RECORD}")}
    folder = recorded.get(run, Path(run).resolve())
    if (folder / RECORD).is_file():
        return folder
    raise ConfigurationError(
        did_you_mean("run", run, recorded)
        if recorded
        else f"got the run {run}, and {outputs / 'runs'} holds no records"
    )
