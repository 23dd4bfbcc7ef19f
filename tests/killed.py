"""Runs in processes that are ended at a chosen instant. Processes are forked from one that has all modules loaded."""

import os
import resource
import signal
import sys
from multiprocessing import forkserver, get_context
from pathlib import Path

import pytest
import torch

import run as program
from experiments import configuration

ROOT = Path(__file__).resolve().parents[1]
# What a run loads as it goes on, and what this file does.
LOADED = [__name__, "transformers.trainer", "data_prep.multiplication", "experiments.parts", "ntl.evaluation"]
LOADED += ["ntl.predictors", "ntl.saving", "ntl.training"]
# What changes files, by the name under which Python tells its audit hooks of it; all of it in the moment before.
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "shutil.rmtree")


def process(overrides, folder, log, event=None, size=None):
    """Return a process, not yet started, that does a run whose files are all below `folder`.

    Args:
        log: file for what the run says; its changes of files, one line each, go to the same name with `.changes`.
        event: SIGKILL before this one of its changes of files, counted from 1.
        size: end it in the middle of writing the first file that grows beyond so many bytes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        # The server of Python 3.11 finds what it is to load on this path alone, and says nothing where it does not.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        forkserver.ensure_running()
    return context.Process(target=_run, args=(list(overrides), str(folder), str(log), event, size))


def _run(overrides, folder, log, event, size):
    os.chdir(ROOT)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    changes = os.open(f"{log}.changes", os.O_WRONLY | os.O_CREAT)
    seen = 0

    def hook(name, arguments):
        nonlocal seen
        writing = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writing or name in CHANGES) or not str(arguments[0]).startswith(folder):
            return
        seen += 1
        os.write(changes, f"{seen} {name} {os.path.relpath(str(arguments[0]), folder)}\n".encode())
        if seen == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would see an error
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    torch.set_num_threads(1)
    program.run(configuration.compose(overrides), one_thread=True)
