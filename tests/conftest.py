"""Settings of all tests; the processes that tests start inherit them."""

import os
import signal
from collections import Counter

import pytest
import slurm_cluster

# One thread each: results are then the same to the bit, and processes side by side do not get in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell has what it starts in the background ignore Ctrl-C, and so would every process that a test sends it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session):
    """A worker of pytest-xdist tells its session how many SLURM jobs it has run."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["slurm_jobs"] = slurm_cluster.jobs_run


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    jobs = getattr(node, "workeroutput", {}).get("slurm_jobs")
    if jobs is not None:
        slurm_cluster.jobs_run = (slurm_cluster.jobs_run or 0) + jobs


def pytest_terminal_summary(terminalreporter):
    """Say how much was done by tests that count it (`record_property`)."""
    counts = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                counts.update(dict(report.user_properties))
    for what, count in counts.items():
        terminalreporter.write_line(f"{what}: {count}")
    if slurm_cluster.jobs_run is not None:
        terminalreporter.write_line(f"SLURM jobs: {slurm_cluster.jobs_run}")
