"""One process at a time in a folder, whatever becomes of the processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ntl.runs import lease as lease_module
from ntl.runs.lease import Lease, LeaseLost, RunBusy, newest

ROOT = Path(__file__).parents[3]


def start(code: str, *arguments) -> subprocess.Popen:
    """Start Python in another process, with `Lease`, `RunBusy`, `sys`, `time` and `Path` at hand."""
    head = "import sys, time\nfrom pathlib import Path\nfrom ntl.runs.lease import *\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


HOLD = "Lease(Path(sys.argv[1]), 'run x', 0.2).acquire(); print('held', flush=True); time.sleep(600)"


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the lease on `tmp_path`."""
    process = start(HOLD, tmp_path)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def pretend(folder: Path, silence: float = 0.0, **changes) -> Path:
    """Leave the lease of a holder on another machine, last heard of `silence` seconds ago."""
    holder = {"host": "elsewhere", "pid": 1, "started": 5.0, "machine": "other", "job": None, "restart": 0}
    holder |= {"interval": 1.0, "token": "t"} | changes
    path = folder / "000001.json"
    path.write_text(json.dumps(holder))
    then = time.time() - silence
    os.utime(path, (then, then))
    return path


def test_a_live_owner_is_respected_and_named(tmp_path, owner):
    with pytest.raises(RunBusy) as busy:
        Lease(tmp_path, "run x").acquire()
    assert (busy.value.host, busy.value.pid) == (socket.gethostname(), owner.pid)
    assert 0 <= busy.value.age < 30
    for part in ("run x", socket.gethostname(), str(owner.pid)):
        assert part in str(busy.value)


def test_a_stopped_owner_on_this_machine_is_alive(tmp_path, owner):
    owner.send_signal(signal.SIGSTOP)
    (path,) = tmp_path.glob("*.json")
    os.utime(path, (time.time() - 1e4,) * 2)
    with pytest.raises(RunBusy):
        Lease(tmp_path, "run x").acquire()


def test_a_killed_owner_is_taken_over_at_once_and_it_is_said(tmp_path, owner, caplog, record_property):
    owner.kill()  # not waited for: a zombie is dead too
    while newest(tmp_path)[1].alive(0.0):
        time.sleep(0.01)
    lease = Lease(tmp_path, "run x").acquire()
    assert lease.taken_from.pid == owner.pid
    assert "taken over" in caplog.text
    assert str(owner.pid) in caplog.text
    lease.release()
    record_property("faults", 1)


def test_a_reused_process_id_is_not_the_owner(tmp_path):
    pretend(tmp_path, pid=os.getpid(), machine=lease_module._machine(), started=1.0)
    lease = Lease(tmp_path, "run x").acquire()
    assert lease.taken_from.pid == os.getpid()
    lease.release()


def test_another_machine_is_judged_by_its_heartbeat(tmp_path):
    pretend(tmp_path, silence=6.0)
    with pytest.raises(RunBusy, match="elsewhere"):
        Lease(tmp_path, "run x").acquire()
    pretend(tmp_path, silence=9.0)
    lease = Lease(tmp_path, "run x").acquire()
    assert lease.taken_from.host == "elsewhere"
    lease.release()


def test_a_requeued_job_takes_its_own_lease_back(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    pretend(tmp_path, job="42", restart=0)
    with pytest.raises(RunBusy):  # another process of the same life of the job
        Lease(tmp_path, "run x").acquire()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    Lease(tmp_path, "run x").acquire().release()


def test_a_lease_that_does_not_read_counts_until_it_is_old(tmp_path):
    path = tmp_path / "000001.json"
    path.write_text('{"host": ')
    with pytest.raises(RunBusy, match="unknown"):
        Lease(tmp_path, "run x").acquire()
    os.utime(path, (time.time() - 1e4,) * 2)
    Lease(tmp_path, "run x").acquire().release()


def test_released_leases_are_free_without_a_word(tmp_path, caplog):
    for _ in range(3):
        lease = Lease(tmp_path, "run x").acquire()
        with pytest.raises(RunBusy):
            Lease(tmp_path, "run x").acquire()
        lease.release()
        assert lease.taken_from is None
    assert caplog.text == ""
    assert len(list(tmp_path.iterdir())) == 1


def test_the_heart_beats_while_held_and_no_longer(tmp_path):
    lease = Lease(tmp_path, "run x", interval=0.02).acquire()
    (path,) = tmp_path.glob("*.json")
    os.utime(path, (1e9, 1e9))
    while path.stat().st_mtime < 1.1e9:
        time.sleep(0.01)
    lease.release()
    assert "lease" not in {thread.name for thread in threading.enumerate()}


def test_an_owner_that_slept_too_long_learns_that_it_lost(tmp_path, monkeypatch):
    lease = Lease(tmp_path, "run x", interval=60).acquire()
    lease.check()
    monkeypatch.setattr(lease_module.Holder, "alive", lambda holder, age: False)
    other = Lease(tmp_path, "run x", interval=60).acquire()
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()
    other.check()  # the loser's release did not harm it
    monkeypatch.undo()
    with pytest.raises(RunBusy):
        Lease(tmp_path, "run x").acquire()
    other.release()


def test_a_slow_taker_cannot_take_from_a_quick_one(tmp_path, monkeypatch):
    """Two find the same dead owner; one sleeps between finding and taking, the other takes meanwhile."""
    pretend(tmp_path, silence=1e4)
    slow, quick, claim = Lease(tmp_path, "slow"), Lease(tmp_path, "quick"), Lease._claim

    def sleepy(self, number):
        if self is slow and not quick._number:
            quick.acquire()
        return claim(self, number)

    monkeypatch.setattr(Lease, "_claim", sleepy)
    with pytest.raises(RunBusy):
        slow.acquire()
    quick.check()
    quick.release()


def test_a_taker_that_slept_over_a_whole_tenure_cannot_take_from_the_next(tmp_path, monkeypatch):
    pretend(tmp_path, silence=1e4)
    slow, first, second = Lease(tmp_path, "slow"), Lease(tmp_path, "first"), Lease(tmp_path, "second")
    claim = Lease._claim

    def sleepy(self, number):
        if self is slow and not first._number:
            first.acquire().release()
            second.acquire()
        return claim(self, number)

    monkeypatch.setattr(Lease, "_claim", sleepy)
    with pytest.raises(RunBusy):
        slow.acquire()
    second.check()
    second.release()


RACE = """
folder, go = Path(sys.argv[1]), Path(sys.argv[2])
print('ready', flush=True)
while not go.exists(): pass
try:
    Lease(folder, 'run x').acquire(); print('won', flush=True); time.sleep(600)
except RunBusy as busy:
    print('busy', busy.pid, flush=True)
"""


@pytest.mark.parametrize("dead_owner", [False, True])
@pytest.mark.parametrize("hard_links", [True, False])
def test_of_eight_processes_exactly_one_wins(tmp_path, dead_owner, hard_links):
    folder = tmp_path / "lease"
    if dead_owner:
        folder.mkdir()
        pretend(folder, silence=1e4)
    no_links = "" if hard_links else "import os\ndef no(*a): raise OSError(1, 'no links')\nos.link = no\n"
    racers = [start(no_links + RACE, folder, tmp_path / "go") for _ in range(8)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        (tmp_path / "go").touch()
        answers = [racer.stdout.readline().split() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    winners = [racer.pid for racer, answer in zip(racers, answers, strict=True) if answer == ["won"]]
    assert len(winners) == 1
    assert [answer[0] for answer in answers].count("busy") == 7
    if hard_links:  # without them, a loser may look at the winner's file before it is whole
        assert {answer[1] for answer in answers if answer[0] == "busy"} == {str(winners[0])}


def test_interval_is_checked(tmp_path):
    with pytest.raises(ValueError, match="interval"):
        Lease(tmp_path, "run x", interval=0)
