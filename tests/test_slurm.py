"""Sweeps through a real SLURM: the records of a sweep at home, whatever becomes of the jobs on the way."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import slurm_cluster
from test_run import ARMS, SMALL, places

from ntl.runs import run as runs

ROOT = Path(__file__).resolve().parents[1]
LONGER = [argument for argument in SMALL if not argument.startswith(("train.steps", "train.eval_every"))]
LONGER += ["train.steps=1500", "train.eval_every=250", "model.architecture.dropout_rate=0.1", "train.accumulate=2"]
LAUNCHER = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=10"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]


@pytest.fixture(scope="session")
def cluster():
    if reason := slurm_cluster.why_not():
        pytest.skip(f"no SLURM: {reason}")
    cluster = slurm_cluster.Cluster()
    try:
        yield cluster.start()
    finally:
        cluster.stop()


class Sweep:
    """A sweep through SLURM and what is seen of it; `arguments` as on the command line."""

    def __init__(self, cluster, folder, *arguments):
        self.cluster, self.folder = cluster, folder
        self.before = set(cluster.jobs())
        command = [sys.executable, "run.py", "-m", *LAUNCHER, *arguments, *places(folder)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.launcher = subprocess.Popen(command, cwd=ROOT, env=cluster.environment, **streams)

    def jobs(self):
        """The controller's view of each job, in the sweep's order; it counts those that still wait as one."""
        jobs = {job: fields for job, fields in self.cluster.jobs().items() if job not in self.before}
        return [jobs[job] for job in sorted(jobs, key=lambda job: int(re.search(r"(\d+)[^_]*$", job)[1]))]

    def states(self):
        return [job["JobState"] for job in self.jobs()]

    def under_way(self):
        """Whether a job runs, as far as the controller knows: it hears of a job's end later than the launcher."""
        return not {"RUNNING", "COMPLETING"}.isdisjoint(self.states())

    def name(self, number):
        """SLURM's name of one job: of an array, the id of its last one would name them all."""
        job = self.jobs()[number]
        return f"{job['ArrayJobId']}_{job['ArrayTaskId']}" if "ArrayJobId" in job else job["JobId"]

    def wait_for(self, condition, what, seconds=240):
        end = time.monotonic() + seconds
        while not condition():
            over = self.launcher.poll() is not None and not self.under_way()
            if (over and not condition()) or time.monotonic() > end:
                self.launcher.kill()
                said = self.launcher.communicate()[0]
                raise AssertionError(f"no {what}.\n{said}\n{self.jobs()}\n{self.logs()}\n{self.cluster.logs()}")
            time.sleep(0.1)

    def training(self, seed):
        """Wait until the run of this seed is in the middle of its training."""
        pattern = f"outputs/runs/*/*-s{seed}-*/checkpoints/checkpoint-*/sealed.json"
        self.wait_for(lambda: any(self.folder.glob(pattern)), f"checkpoint of seed {seed}")

    def end(self, seconds=300):
        """Wait for the end of it all, SLURM's own tidying up included; returns the exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.said = self.launcher.communicate(timeout=seconds)[0]
            self.cluster.wait(lambda: not self.under_way(), "a job does not end")
            return self.launcher.returncode
        self.wait_for(lambda: False, "end", seconds=0)

    def logs(self):
        logs = sorted(self.folder.glob("outputs/hydra/**/*_log.*"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in logs)


@pytest.fixture
def sweep(cluster, tmp_path, record_property):
    started, before = [], set(cluster.jobs())

    def sweep(*arguments):
        started.append(Sweep(cluster, tmp_path, *arguments))
        return started[-1]

    yield sweep
    record_property("SLURM jobs", len(set(cluster.jobs()) - before))
    for one in started:
        one.launcher.kill()
        one.launcher.communicate()
        cluster.clear()


def results(folder):
    """What must not depend on where and how often a run was started, by run id."""
    found = {}
    for path in folder.glob("outputs/runs/*/*/record.json"):
        record = runs.read_record(path)
        assert record["status"] == "finished", record["reason"]
        predictions = (path.parent / "predictions.parquet").read_bytes()
        found[record["id"]] = record["config"], record["metrics"], record["data"], predictions
    return found


def at_home(folder, *arguments):
    command = [sys.executable, "run.py", "-m", *arguments, *places(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return results(folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Two longer runs that nothing interrupts, on this machine."""
    return at_home(tmp_path_factory.mktemp("uninterrupted"), *LONGER, "seed=0,1")


def test_what_sbatch_refuses_is_told_in_its_words(sweep, tmp_path):
    started = sweep(*SMALL, "hydra.launcher.partition=nowhere")
    assert started.end() == 1
    assert "error: sbatch: error: invalid partition specified: nowhere" in started.said
    assert "Traceback" not in started.said


def test_a_sweep_ends_as_at_home_though_nodes_are_drained_meanwhile(cluster, sweep, tmp_path, tmp_path_factory):
    runs_of_it = [*SMALL, *ARMS, "seeds=[0,1]"]
    started = sweep(*runs_of_it, "hydra.launcher.array_parallelism=2")
    started.wait_for(lambda: started.states().count("RUNNING") == 2, "two jobs at once")
    cluster.tell("scontrol", "update", "nodename=one,two", "state=drain", "reason=test")
    started.wait_for(lambda: {*started.states()} == {"COMPLETED", "PENDING"}, "end of the jobs on drained nodes")
    cluster.tell("scontrol", "update", "nodename=one,two", "state=resume")
    assert started.end() == 0, started.said
    assert started.states() == ["COMPLETED"] * 4
    assert {job["ArrayTaskThrottle"] for job in started.jobs() if "ArrayTaskThrottle" in job} == {"2"}
    assert results(tmp_path) == at_home(tmp_path_factory.mktemp("home"), *runs_of_it)
    for path in tmp_path.glob("outputs/runs/*/*/record.json"):
        text, record = path.read_text(), json.loads(path.read_text())
        assert record["environment"]["threads"] == 1 and record["code"] == runs.code_state() | record["code"]
        for name in (os.uname().nodename, str(tmp_path), str(ROOT), cluster.folder.name, "SLURM", "submitit"):
            assert name not in text


def test_jobs_that_are_signalled_are_requeued_and_end_the_same(cluster, sweep, tmp_path, uninterrupted):
    started = sweep(*LONGER, "seed=0,1")
    for seed, signal in ((0, "USR2"), (1, "TERM")):
        started.training(seed)
        cluster.tell("scancel", f"--signal={signal}", started.name(seed))
    assert started.end() == 0, started.said
    assert [job["Restarts"] for job in started.jobs()] == ["1", "1"]
    assert started.logs().count("going on from step") == 2
    assert len(uninterrupted) == 2 and results(tmp_path) == uninterrupted


def test_a_job_that_makes_way_for_a_more_urgent_one_ends_the_same(cluster, sweep, tmp_path, uninterrupted):
    started = sweep(*LONGER, "seed=0")
    started.training(0)
    urgent = ["--partition=urgent", f"--nodelist={started.jobs()[0]['NodeList']}", "--exclusive", "--wrap=sleep 1"]
    cluster.tell("sbatch", *urgent, f"--output={tmp_path / 'urgent'}")
    assert started.end() == 0, started.said
    assert started.jobs()[0]["Restarts"] == "1"
    assert "SIGTERM: saving a checkpoint" in started.logs() and "going on from step" in started.logs()
    (ended,) = results(tmp_path).items()
    assert ended in uninterrupted.items()


def test_a_job_that_is_cancelled_goes_on_with_the_same_command(cluster, sweep, tmp_path, uninterrupted):
    started = sweep(*LONGER, "seed=0")
    started.training(0)
    cluster.tell("scancel", started.name(0))
    started.wait_for(lambda: started.states() == ["CANCELLED"], "cancelled job")
    assert results(tmp_path) == {} and started.jobs()[0]["Restarts"] == "0"
    again = sweep(*LONGER, "seed=0")
    assert again.end() == 0, again.said
    assert "going on from step" in again.logs()
    (ended,) = results(tmp_path).items()
    assert ended in uninterrupted.items()


def test_a_job_that_meets_its_time_limit_is_requeued_and_ends_the_same(cluster, sweep, tmp_path, uninterrupted):
    cluster.wait_for_time_limits()
    # Then about twenty seconds are left until SLURM looks again, and finds that a minute will soon be over.
    time.sleep(8)
    started = sweep(*LONGER, "seed=0", "hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=30")
    assert started.end() == 0, started.said
    assert int(started.jobs()[0]["Restarts"]) >= 1
    assert "Caught signal SIGUSR2" in started.logs() and "this job is timed-out" in started.logs()
    (ended,) = results(tmp_path).items()
    assert ended in uninterrupted.items()
