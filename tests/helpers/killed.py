"""Runs in processes that meet a fault at a chosen instant, forked from one that has all modules loaded."""

import os
import resource
import runpy
import signal
import sys
from multiprocessing import forkserver, get_context
from pathlib import Path

import psutil
import pytest
import torch
import transformers

import run as program
from experiments.config import compose as configuration

ROOT = Path(__file__).resolve().parents[2]
# What a run loads as it goes on, and what this file does.
LOADED = [
    __name__,
    "transformers.trainer",
    "data_prep.multiplication",
    "experiments.config.instantiate",
    "ntl.evaluation.answer",
]
LOADED += ["ntl.evaluation.baselines", "ntl.predict", "ntl.runs.execute", "ntl.training.train"]
# What changes files, by the name under which Python tells its audit hooks of it; all of it in the moment before.
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "shutil.rmtree")


def process(overrides, folder, log, command=False, **fault):
    """Return a process, not yet started, that does a run whose files are all below `folder`.

    Args:
        log: file for what the run says; its changes of files, one line each, go to the same name with `.changes`.
        command: give the overrides to run.py as a command line, sweeps included, rather than to its `run`.
        fault: as `meet` takes it.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        # The server of Python 3.11 finds what it is to load on this path alone, and says nothing where it does not.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        forkserver.ensure_running()
    return context.Process(target=_run, args=(list(map(str, overrides)), str(folder), str(log), command, fault))


def command(overrides, folder, log, **fault):
    """Give the overrides to run.py as a command line; → exit code and all that it said."""
    started = process(overrides, folder, log, command=True, **fault)
    started.start()
    started.join(240)
    started.kill()
    started.join()
    return started.exitcode, Path(log).read_text()


def _run(overrides, folder, log, command, fault):
    os.chdir(ROOT)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    meet(folder, os.open(f"{log}.changes", os.O_WRONLY | os.O_CREAT), **fault)
    if command:
        sys.argv = ["run.py", *overrides]
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    else:
        program.run(configuration.compose(overrides), one_thread=True)


def meet(folder, changes, event=None, size=None, of="", kills=True, answer=None, number=signal.SIGKILL, memory=None):
    """Prepare for a fault of this process; all changes of files below `folder` are written to the file `changes`.

    Args:
        event: SIGKILL before this one of its changes of files, counted from 1.
        size: no file can grow beyond so many bytes; the first that would ends the process in the middle of writing
            it if `kills`, else that is an error such as a full disk gives.
        of: `event` counts those changes alone, and `size` holds from the first of them on, in whose path this stands.
        answer: `number` is sent to the process itself before it generates its answers to this batch, from 1.
        memory: so many MiB can be had beyond what is taken now.
    """
    seen = 0

    def limit():
        if kills:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would see an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def hook(name, arguments):
        nonlocal seen
        writing = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writing or name in CHANGES) or not str(arguments[0]).startswith(folder):
            return
        path = os.path.relpath(str(arguments[0]), folder)
        os.write(changes, f"{name} {path}\n".encode())
        if of not in path:
            return
        seen += 1
        if of and size is not None:
            limit()
        if seen == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if size is not None and not of:
        limit()
    if answer is not None:
        _send_before_answer(answer, number)
    if memory is not None:
        most = psutil.Process().memory_info().vms + memory * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _send_before_answer(answer, number):
    generate, batches = transformers.GenerationMixin.generate, 0

    def counted(*arguments, **options):
        nonlocal batches
        batches += 1
        if batches == answer:
            os.kill(os.getpid(), number)
        return generate(*arguments, **options)

    transformers.GenerationMixin.generate = counted
