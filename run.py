"""Train and score one model, or with -m every arm and seed of an experiment; `python run.py --help` says how.

The path of a run, from top to bottom: compose its configuration → check it → prepare the data → execute (training,
answers, scores, record). What each step does is in the module it calls; training starts in ntl/runs/execute.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config import advice, command_line
from experiments.config import compose as configuration
from ntl import distributed
from ntl.runs import faults
from ntl.training.stopping import requeued_when_stopped

configuration.register()
log = logging.getLogger("run")


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(_: DictConfig) -> None:
    """Hydra's part: launch one job per run. Each job composes its own configuration, its arm's overrides included."""
    job = HydraConfig.get()
    if why := configuration.unplanned(job.overrides.task):
        log.info("%s", why)
        return
    at_once = "joblib" in job.launcher._target_
    if at_once:  # each process has a line of its own for its progress bar
        os.environ.setdefault("TQDM_POSITION", str(job.job.num % (os.cpu_count() or 1)))
    with requeued_when_stopped():
        distributed.join()
        try:
            run(configuration.compose(list(job.overrides.task)), one_thread=at_once)
        except Exception as error:
            faults.forget(error)
            if distributed.size() == 1:
                raise
            # It ends here and now: the others may be waiting for this process, and torchrun will end them.
            sys.exit(f"error in process {distributed.rank()} of {distributed.size()}: {advice.told(error)}")


def run(config: Mapping[str, Any], one_thread: bool = False) -> None:
    """Do the run that `config` describes and record it, unless that has been done."""
    from experiments.config.instantiate import instantiate_whole

    parts = instantiate_whole(config)  # checks all that can be checked before work starts

    import torch

    from ntl import models
    from ntl.runs import run as runs
    from ntl.runs.execute import execute_or_fail

    torch.set_num_threads(1 if one_thread else parts.train.threads or torch.get_num_threads())
    paths = {name: Path(path) for name, path in config["paths"].items()}
    prepared = distributed.in_turn(lambda: parts.dataset.prepare(paths["data"]))
    identity = runs.run_id(config, prepared.fingerprint, models.fingerprint(parts.model))
    record = runs.Run(config, identity, paths["outputs"])

    wanted = {"retry": config["retry"], "force": config["force"]}
    todo, status = distributed.decided(lambda: (record.todo(**wanted), record.status()))
    if todo == "skip":
        again = {"failed": "retry", "finished": "force"}[status]
        log.info("%s: skip, it is %s in %s; %s=true runs it again", identity, status, record.folder, again)
        return
    log.info("%s: %s", identity, todo)
    published = paths["results"] / "runs" / record.folder.parent.name / identity
    if (published / "record.json").exists():
        log.info("%s: a published record exists in %s; this run is recorded apart from it", identity, published)
    with contextlib.ExitStack() as lease:
        refused = None
        try:
            if distributed.is_first():
                lease.enter_context(record.lease(**wanted))
        except (runs.RunBusy, runs.RunDone) as reason:
            refused = str(reason)
        if reason := distributed.decided(lambda: refused):
            log.info("%s: skip, %s", identity, reason)
            return
        try:
            execute_or_fail(parts, prepared, record)
        except Exception as error:
            advice.advise(error, config)
            raise
    log.info("%s: recorded in %s", identity, record.folder)


if __name__ == "__main__":
    with command_line.errors_told():
        if sys.argv[1:2] == ["predict"]:
            command_line.predict(sys.argv[2:])
        else:
            command_line.check(sys.argv[1:])
            sys.argv[1:] = configuration.for_hydra(sys.argv[1:])
            with command_line.quiet_but_the_first():
                main()
            distributed.leave()
