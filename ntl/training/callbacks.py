"""What happens around a training step: sealing checkpoints, stopping on a signal, reporting, the progress bar."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from ntl import distributed
from ntl.training import checkpoints
from ntl.training.meters import run_values
from ntl.training.stopping import SIGNALS

log = logging.getLogger(__name__)


class Seal(TrainerCallback):
    """Seals every complete checkpoint, and finds the best one by its step, wherever the folder now lies."""

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        checkpoints.locate_best(state, Path(args.output_dir))

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        distributed.barrier()  # until each process has written its part
        if state.is_world_process_zero:
            checkpoints.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class StopOnSignal(TrainerCallback):
    """On SIGINT, SIGTERM or a scheduler's notice to any of the processes: finish the step, save, and stop.

    Attributes:
        received: the signal, once it has come.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is not None:
            if number == signal.SIGINT:  # Ctrl-C twice: stop at once
                raise KeyboardInterrupt
            return  # schedulers send the same signal to a job's processes and, through its launcher, once more
        self.received = number
        log.warning("%s: saving a checkpoint, then stopping", signal.Signals(number).name)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.received = distributed.highest(self.received or 0) or None
        if self.received is not None:
            control.should_log = control.should_save = control.should_training_stop = True


class Tell(TrainerCallback):
    """Passes every logged row to `tell(step, values)`."""

    def __init__(self, tell: Callable[[int, dict[str, float]], None]) -> None:
        self.tell = tell

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.tell(state.global_step, run_values(logs))


class ProgressBar(ProgressCallback):
    """The library's progress bar, with a title and the loss beside it instead of a line for every logged row."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **rest: Any) -> None:
        super().on_train_begin(args, state, control, **rest)
        if self.training_bar is not None:
            self.training_bar.set_description(self.title)

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}", refresh=False)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """No bar for validations: they are short, and several runs may share a terminal."""
