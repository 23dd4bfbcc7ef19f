"""Curves and results on a dashboard: Weights & Biases, or nothing.

Tracking never decides a run's fate: whatever goes wrong in it is said once, and the training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ntl import options
from ntl.options import option
from ntl.runs.identity import public

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """What follows a run. To be used as a context manager, so that an exception ends it as failed."""

    def start(
        self, run_id: str, config: Mapping[str, Any], history: Iterable[Mapping[str, Any]], folder: str | Path
    ) -> None:
        """Begin, or go on after an interruption.

        Args:
            run_id: identity of the run, the same after an interruption.
            config: its resolved configuration; only its public part is sent.
            history: what was logged up to the checkpoint that the run resumes from; rows with the key "step".
            folder: the run's work folder.
        """

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Add one point to each curve named in `values`; steps must not fall. None is left out."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End with final results."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: Any) -> None: ...


@dataclass(eq=False)
class NoTracker:
    """Tracks nothing."""

    def start(
        self, run_id: str, config: Mapping[str, Any], history: Iterable[Mapping[str, Any]], folder: str | Path
    ) -> None: ...

    def log(self, step: int, values: Mapping[str, float | None]) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None: ...


@dataclass(eq=False)
class WandbTracker:
    """Tracks a run with Weights & Biases, as one W&B run whose id is the run's id.

    After an interruption the same W&B run goes on. Offline, what the interrupted attempt left in the work folder is
    replaced, and the history replayed; online, only what the server had not got is sent again.
    """

    project: str = option("ntl", "W&B project")
    entity: str | None = option(None, "user or team; null: the account's default")
    group: str | None = option(None, "heading under which the dashboard gathers runs")
    tags: list[str] = option(meaning="labels", factory=list)
    mode: str = option(
        "auto",
        "auto: $WANDB_MODE if set, else online where there is an API key or a login, else offline",
        choices=("auto", "online", "offline", "disabled"),
    )
    timeout: float = option(
        60.0,
        "seconds to wait for the server at the start and at the end; `wandb sync` sends what it has not got by then",
        above=0,
    )
    _run: Any = field(default=None, init=False)
    _begun: int = field(default=0, init=False)  # first step that is not yet known to the server

    def __post_init__(self) -> None:
        options.check(self, "logger")

    def start(
        self, run_id: str, config: Mapping[str, Any], history: Iterable[Mapping[str, Any]], folder: str | Path
    ) -> None:
        """See `Tracker.start`."""
        self._finish(exit_code=1)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its crash reports name the machine
        try:
            import wandb
        except ImportError as error:
            log.warning("This run is not tracked, because wandb cannot be imported (%s). Install it, or give "
                        "logger=none.", error)  # fmt: skip
            return
        folder = Path(folder).resolve()
        with self._forgiven("start"):
            mode = self._mode(wandb)
            if mode == "disabled":
                return
            try:
                self._run = self._init(wandb, run_id, config, folder, mode)
            except Exception as error:
                if mode == "offline":
                    raise
                log.warning("W&B cannot be reached or refuses the login (%s). This run is tracked offline; `wandb sync "
                            "%s` sends it later.", error, folder / "wandb")  # fmt: skip
                wandb.teardown()  # its service does not forget an id that failed to start
                self._run = self._init(wandb, run_id, config, folder, "offline")
            if not self._run.offline:
                log.info("W&B: %s", self._run.url)
            self._begun = self._run.starting_step  # 0 unless the server had the run already
        for row in history:
            self.log(row["step"], {name: value for name, value in row.items() if name != "step"})

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """See `Tracker.log`."""
        if self._run is None or step < self._begun:
            return
        with self._forgiven("log"):
            self._run.log({name: value for name, value in values.items() if value is not None}, step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See `Tracker.finish`."""
        if self._run is not None:
            with self._forgiven("write the summary of"):
                self._run.summary.update(dict(summary))
        self._finish(exit_code=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(exit_code=0 if kind is None else 1)

    def _finish(self, exit_code: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            with self._forgiven("finish"):
                run.finish(exit_code=exit_code)

    def _init(self, wandb: Any, run_id: str, config: Mapping[str, Any], folder: Path, mode: str) -> Any:
        for left in (folder / "wandb").glob(f"*run-*-{run_id}"):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        patience = time.monotonic() + 5
        while True:
            try:
                return wandb.init(config=public(config), settings=self._settings(wandb, run_id, folder, mode))
            except Exception as error:
                # An attempt of this process with the same id may have ended a moment ago, and still be tidying up.
                if "in use" not in str(error) or time.monotonic() > patience:
                    raise
                time.sleep(0.1)

    def _mode(self, wandb: Any) -> str:
        if self.mode != "auto":
            return self.mode
        settings = wandb.setup().settings  # from the environment and wandb's own files
        if os.environ.get("WANDB_MODE"):
            return settings.mode
        if settings.api_key or settings.identity_token_file:
            return "online"
        with contextlib.suppress(ImportError, AttributeError):
            from wandb.sdk.lib import wbauth

            if wbauth.read_netrc_auth(host=settings.base_url):
                return "online"
        return "offline"

    def _settings(self, wandb: Any, run_id: str, folder: Path, mode: str) -> Any:
        return wandb.Settings(
            mode=mode,
            run_id=run_id,
            run_name=run_id,
            project=self.project,
            entity=self.entity,
            run_group=self.group,
            run_tags=self.tags,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # a sweep has many runs in one process, and a notebook may have one of its own
            root_dir=str(folder),
            init_timeout=self.timeout,
            finish_timeout=self.timeout,
            silent=True,
            symlink=False,
            # The rest keeps the machine, its user and the folders private; an empty text stands for "not known",
            # where None would be filled in.
            host="",
            username="",
            email="",
            program="",
            program_abspath="",
            program_relpath="",
            x_executable="",
            docker="",
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            disable_job_creation=True,
            label_disable=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )

    @contextlib.contextmanager
    def _forgiven(self, what: str):
        """Turn an exception of W&B into a warning, and track this run no further."""
        try:
            yield
        except Exception as error:
            self._run = None
            log.warning("W&B could not %s this run, which goes on untracked (%s: %s). Give logger=none to do without "
                        "it.", what, type(error).__name__, error)  # fmt: skip
