"""What to change about an error: options and commands, which the library that raises it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ntl.runs.faults import OutOfMemory
from ntl.runs.record import RecordError


def advise(error: Exception, config: Mapping[str, Any]) -> None:
    """Add a note to an error of a run, where an option of its configuration can help."""
    if isinstance(error, OutOfMemory):
        error.add_note(f"try {_less_memory(error.during, config)}, with retry=true")


def told(error: Exception) -> str:
    """The text of an error followed by what has been advised."""
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, RecordError):
        notes.append("python -m experiments status --repair moves the folders of all damaged records away.")
    text = str(error)
    for note in notes:
        text += (" " if text.endswith(".") else ": ") + note
    return text


def _less_memory(during: str | None, config: Mapping[str, Any]) -> str:
    if during == "answering":
        return _smaller_evaluation(config["eval"])
    if during == "training":
        return _smaller_training(config["train"])
    return "a smaller model or a machine with more"


def _smaller_evaluation(settings: Mapping[str, Any]) -> str:
    if (rows := settings["batch_size"]) > 1:
        return f"a smaller eval.batch_size, such as eval.batch_size={rows // 2} for {rows}"
    return "fewer eval.beams, a smaller model, or a machine with more"


def _smaller_training(settings: Mapping[str, Any]) -> str:
    rows, accumulate = settings["batch_size"], settings["accumulate"]
    ways = []
    if rows > 1:
        by = next(factor for factor in range(2, rows + 1) if rows % factor == 0)
        ways.append(
            f"a smaller train.batch_size with a larger train.accumulate, such as train.batch_size={rows // by} "
            f"train.accumulate={accumulate * by}, which leaves a step its {rows * accumulate} rows"
        )
    if settings["precision"] == "fp32":
        ways.append("train.precision=bf16")
    if settings["loss_implementation"] != "linear" and not settings["fsdp"]:
        ways.append("train.loss_implementation=linear, where model and loss take it")
    return ", or ".join(ways or ["a smaller model or a machine with more"])
