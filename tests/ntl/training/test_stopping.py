"""Being asked to stop, as a job of submitit's is; tests/test_slurm.py does it in a real SLURM."""

import os
import signal

import pytest

from ntl.training.stopping import NOTICE, NotRequeued, Stopped, catch_up, requeued_when_stopped

SIGNALS = (signal.SIGTERM, NOTICE)


@pytest.fixture
def requeued(monkeypatch):
    """The signals for which a job's own handler, which submitit would have installed, was called."""
    called = []
    before = {number: signal.signal(number, lambda number, frame: called.append(number)) for number in SIGNALS}
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", "")  # there is no squeue that says that the job runs
    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


def ask(number):
    os.kill(os.getpid(), number)


def test_a_job_is_requeued_once_its_work_has_been_put_down(requeued):
    order = []
    with pytest.raises(Stopped, match="stopped by SIG") as stop, requeued_when_stopped():
        try:
            ask(NOTICE)
        finally:
            ask(NOTICE)  # again, and what a requeue brings: nothing of it disturbs the work that is put down
            ask(signal.SIGTERM)
            order.append(list(requeued))
    assert stop.value.number == NOTICE
    assert order == [[]] and requeued == [NOTICE]


def test_a_job_that_was_cancelled_is_not_requeued(requeued):
    with pytest.raises(Stopped), requeued_when_stopped():
        ask(signal.SIGTERM)
    assert requeued == []


def test_a_job_that_cannot_be_requeued_says_so(requeued):
    def refuse(number, frame):
        raise OSError("no more.")

    signal.signal(NOTICE, refuse)
    said = r"^stopped by .*\. no more\. The same command goes on from here\.$"
    with pytest.raises(NotRequeued, match=said), requeued_when_stopped():
        ask(NOTICE)


def test_a_signal_that_training_held_back_stops_the_job_after_all(requeued):
    with pytest.raises(Stopped), requeued_when_stopped():
        catch_up(NOTICE)
    assert requeued == [NOTICE]


def test_elsewhere_nothing_changes(requeued, monkeypatch):
    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    with requeued_when_stopped():
        ask(NOTICE)
        catch_up(NOTICE)
    assert requeued == [NOTICE]


def test_other_errors_pass(requeued):
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError), requeued_when_stopped():
        raise ValueError
    assert [signal.getsignal(number) for number in SIGNALS] == handlers and requeued == []
