"""A real SLURM of this test session's own: two nodes on one machine, in a private folder, on ports of its own.

It has its own munge (key, socket, daemon) and configuration, so that it neither disturbs nor is disturbed by another
SLURM on the machine, or by the same tests at work in another checkout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from filelock import FileLock

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PACKAGES = ("slurm-wlm", "munge")  # Debian's and Ubuntu's
NODES = ("one", "two")
TIME_LIMITS = "Testing job time limits"  # in the controller's log, every 30 seconds
CONFIGURATION = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
# A requeued job waits for as long as a credential may live; two minutes unless it is said otherwise.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
MinJobAge=36000
SlurmctldDebug=debug2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Install SLURM where that is possible; say why it cannot be used here, or None."""
    if os.geteuid() != 0:
        return "starting SLURM's daemons needs root"
    with FileLock(Path(tempfile.gettempdir()) / "ntl-slurm-install.lock"):
        if all(map(shutil.which, PROGRAMS)):
            return None
        if not shutil.which("apt-get"):
            return "SLURM is not installed, and there is no apt-get to install it with"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
            if subprocess.run(["apt-get", "--quiet", *command], env=environment, **quiet).returncode:
                return f"apt-get {' '.join(command)} failed"
    return None if all(map(shutil.which, PROGRAMS)) else f"{' and '.join(PACKAGES)} lack some of {', '.join(PROGRAMS)}"


class Cluster:
    """The daemons, from `start` to `stop`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ntl-slurm-"))  # short, for the sockets' sake
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen] = []

    def start(self) -> Cluster:
        """Start munge, the controller and the nodes; returns once all nodes take jobs."""
        ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(name=self.folder.name, host=host, port=ports[0], folder=self.folder, nodes=nodes)
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        self.wait(lambda: (self.folder / "munge.socket").exists(), "munge did not start")
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(lambda: self._states() == ["idle"] * len(NODES), "no idle nodes")
        return self

    def stop(self) -> None:
        """End all jobs, then the daemons that were started here, and remove the folder."""
        with contextlib.suppress(subprocess.SubprocessError, RuntimeError):
            self.clear()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """End all jobs, and let all nodes take new ones."""
        if self.tell("squeue", "-h"):
            self.tell("scancel", "--state=PENDING", "--user=root")
            self.tell("scancel", "--signal=KILL", "--user=root")  # jobs that would stop in their own time
            self.tell("scancel", "--user=root")
            self.wait(lambda: not self.tell("squeue", "-h"), "jobs remain")
        if set(self._states()) != {"idle"}:
            self.tell("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume")

    def wait_for_time_limits(self) -> None:
        """Return just after the controller has looked for jobs that are near their time limit."""
        log = self.folder / "slurmctld.log"
        seen = log.read_text().count(TIME_LIMITS)
        self.wait(lambda: log.read_text().count(TIME_LIMITS) > seen, "no look at time limits")

    def tell(self, *command: str) -> str:
        """Run one of SLURM's commands; returns what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def jobs(self) -> dict[str, dict[str, str]]:
        """What the controller knows of every job, ended ones included, by job id (of an array: `<id>_<task>`)."""
        jobs = {}
        for line in self.tell("scontrol", "--oneliner", "show", "job").splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "JobId" in fields:
                array = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else None
                jobs[array or fields["JobId"]] = fields
        return jobs

    def wait(self, condition, what: str, seconds: float = 60) -> None:
        """Return once `condition` holds; raises RuntimeError, with what the daemons say, where it does not in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.SubprocessError):
                if condition():
                    return
            time.sleep(0.1)
        raise RuntimeError(f"SLURM: {what} within {seconds:.0f} s.\n{self.logs()}")

    def logs(self) -> str:
        """The ends of the daemons' logs, for a message."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def _states(self) -> list[str]:
        return self.tell("sinfo", "-h", "-N", "--partition=main", "-o", "%T").split()

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out.log").open("a") as output:
            options = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            # A group of its own: Ctrl-C of the tests is not for the daemons, which `stop` ends.
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, cwd=self.folder, start_new_session=True, **options)
            )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
