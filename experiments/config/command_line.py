"""The command line of run.py: checked before any work, and its errors said in one line."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.errors import HydraException

from experiments.config import advice
from experiments.config import compose as configuration
from experiments.config.paths import in_repository
from ntl import distributed
from ntl.runs import faults

FIRST = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started, which find the same errors
OURS = ("data_prep", "experiments", "ntl", "submitit")  # submitit's errors are sbatch's


def check(arguments: Sequence[str]) -> None:
    """Check every run that a command line names before the first one starts.

    Raises:
        ConfigurationError: for the first that cannot be run.
    """
    configuration.check_words(arguments)
    if any(argument.startswith("-") and argument not in configuration.SWEEPS for argument in arguments):
        return  # --help, --cfg and the like start no run
    if distributed.started() > 1 and (lacking := [n for n in distributed.VARIABLES if n not in os.environ]):
        raise configuration.ConfigurationError(
            f"WORLD_SIZE: got {distributed.started()} processes for one run, without {', '.join(lacking)}: start them "
            "with torchrun, as in torchrun --nproc-per-node 2 run.py …"
        )
    if distributed.started() > 1 and any(a.startswith("hydra/launcher=") for a in arguments):
        raise configuration.ConfigurationError(
            f"hydra/launcher: got one beside {distributed.started()} processes that were started for each run "
            "(WORLD_SIZE, by torchrun or the like), expected none: they do the runs of a sweep one after another"
        )
    configs = configuration.compose_all(arguments)
    configuration.check_launcher(arguments)
    from experiments.config.instantiate import instantiate_whole

    for config in configs:
        instantiate_whole(config)


def predict(arguments: Sequence[str]) -> None:
    """`predict run=<id or folder> QUESTION …`: let a trained model answer, one answer a line.

    Raises:
        ConfigurationError: the run is not there, or nothing is asked.
    """
    named = dict(argument.split("=", 1) for argument in arguments if argument.startswith(("run=", "paths.outputs=")))
    questions = [argument for argument in arguments if not argument.startswith(("run=", "paths.outputs="))]
    if dashed := next((question for question in questions if question.startswith(("--run", "--paths."))), None):
        raise configuration.ConfigurationError(f"got '{dashed}', expected run=<id or folder>, without dashes")
    if "run" not in named or not questions:
        raise configuration.ConfigurationError(
            "predict needs a trained run and at least one question, as in\n"
            '  python run.py predict run=arithmetic-t5_nano-ntl_was-s0-1a2b3c4d "What is 3 + 4?"'
        )
    outputs = Path(named.get("paths.outputs", in_repository("outputs"))) / "runs"
    trained = {path.parent.name: path for path in outputs.glob("*/*/model")}
    folder = trained.get(named["run"], Path(named["run"]))
    if not folder.is_dir():
        raise configuration.ConfigurationError(
            configuration.did_you_mean("run", named["run"], trained)
            if trained
            else f"got run={named['run']}, and no trained model lies below {outputs}; train one with python run.py"
        )
    from ntl.predict import ask

    print("\n".join(ask(folder, questions)))


@contextlib.contextmanager
def quiet_but_the_first() -> Iterator[None]:
    """Let all processes of a run but the first log only what is amiss, and Hydra's files of theirs disappear."""
    with contextlib.ExitStack() as stack:
        if not FIRST:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            sys.argv += [f"hydra.{mode}.dir={folder}" for mode in ("run", "sweep")]
            sys.argv += ["hydra/job_logging=stdout", "hydra.job_logging.root.level=WARNING", "hydra/hydra_logging=none"]
        yield


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """Exit with one line for an interruption or an error that says all there is to say; raise any other."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        yield
    except KeyboardInterrupt as stop:
        if FIRST:
            print(f"stopped: {stop or 'interrupted'}; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not FIRST:
            time.sleep(distributed.PATIENCE)  # torchrun ends all when one has ended: let the first say it
        fault = error if _is_ours(error) else faults.named(error)
        if not _is_ours(fault):
            raise
        sys.exit(f"error: {advice.told(fault)}" if FIRST else 1)


def _is_ours(error: Exception) -> bool:
    """Whether an error's text says all there is to say; others are shown with where they came from."""
    return isinstance(error, HydraException) or type(error).__module__.partition(".")[0] in OURS
