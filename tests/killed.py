"""Runs in processes that are ended at a chosen instant. Processes are forked from one that has all modules loaded."""

import multiprocessing
import os
import resource
import signal
import sys
from pathlib import Path

import torch
import transformers.trainer  # noqa: F401  loaded here, so that no run has to

import run as program
from data_prep import multiplication  # noqa: F401
from experiments import configuration, parts  # noqa: F401
from ntl import data, evaluation, models, runs, saving, training  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
# What changes files, by the name under which Python tells its audit hooks of it; all of it in the moment before.
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "shutil.rmtree")


def process(overrides, folder, log, event=None, size=None):
    """Return a process, not yet started, that does a run whose files are all below `folder`.

    Args:
        log: file for what the run says; its changes of files, one line each, go to the same name with `.changes`.
        event: SIGKILL before this one of its changes of files, counted from 1.
        size: end it in the middle of writing the first file that grows beyond so many bytes.
    """
    # The server of Python 3.11 finds what it is to load on this path alone, and says nothing where it does not.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
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
