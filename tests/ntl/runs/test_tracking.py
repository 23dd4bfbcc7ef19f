"""Tracking: one W&B run per run, whole after an interruption, private, and never the end of a training."""

import getpass
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.wandb_log import read_records, read_run
from helpers.wandb_server import serving

from ntl.runs.tracking import NoTracker, WandbTracker

ROOT = Path(__file__).parents[3]
RUN = "arithmetic-t5_nano-ce-s0-12345678"
CONFIG = {
    "model": {"_target_": "ntl.settings.ModelSettings", "name": "t5_nano", "family": "t5", "path": "/home/somebody/t5"},
    "dataset": {"name": "arithmetic", "file": "/home/somebody/data.jsonl"},
    "seed": 0,
    "logger": {"project": "x"},
    "paths": {"results": "/home/somebody/results"},
}
PUBLIC = {
    "model": {"_target_": "ntl.settings.ModelSettings", "name": "t5_nano", "family": "t5"},
    "dataset": {"name": "arithmetic", "file": "…/data.jsonl"},
    "seed": 0,
}
CURVE = [(step, 1 / step) for step in range(1, 9)]
HISTORY = [{"step": step, "ce": value} for step, value in CURVE]


def private() -> list[str]:
    """What must not be sent, as far as it is told apart from other text on this machine."""
    names = [socket.gethostname(), getpass.getuser()]
    return ["somebody", str(ROOT), str(Path.home()), sys.executable] + [name for name in names if len(name) > 4]


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    """Neither key nor login, whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/*/run-*.wandb"))


def ended(path: Path) -> dict:
    """Read a run that has ended; W&B may write the last of it a moment after finish() has returned."""
    while (run := read_run(path))["exit"] is None:
        time.sleep(0.05)
    return run


def the_run(folder: Path) -> dict:
    """Read the only run in `folder`."""
    (path,) = logs(folder)
    return ended(path)


def points(run: dict, name: str = "ce") -> list[tuple[int, float]]:
    return [(step, pytest.approx(value)) for step, value in run["curves"].get(name, [])]


def other_process(code: str, **environment) -> subprocess.Popen:
    head = f"import sys, time\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    head += "from tests.ntl.runs.test_tracking import *\nlogging.basicConfig()\n"
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", head + code], env=variables, cwd=ROOT, **pipes)


def run_other_process(code: str, **environment) -> str:
    """Run `code` to its end and return what it printed on both channels."""
    process = other_process(code, **environment)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output + errors


def track(folder: Path, run_id: str = RUN, history=(), rows=HISTORY, **options) -> None:
    with WandbTracker(**options) as tracker:
        tracker.start(run_id, CONFIG, history, folder)
        for row in rows:
            tracker.log(row["step"], {name: value for name, value in row.items() if name != "step"})
        tracker.finish({"accuracy": 0.5, "mape": None})


def test_an_offline_run_reads_back_whole(tmp_path):
    track(tmp_path, rows=[*HISTORY[:-1], {**HISTORY[-1], "eval_ce": 0.25, "eval_ntl": None}])
    run = the_run(tmp_path)
    assert run["id"] == RUN
    assert {key: value for key, value in run["config"].items() if key != "_wandb"} == PUBLIC
    assert points(run) == CURVE
    assert points(run, "eval_ce") == [(8, 0.25)]
    assert "eval_ntl" not in run["curves"]
    assert run["summary"]["accuracy"] == 0.5
    assert run["summary"]["ce"] == pytest.approx(1 / 8)
    assert run["exit"] == 0


def test_an_offline_run_names_no_one(tmp_path):
    track(tmp_path)
    the_run(tmp_path)
    (path,) = logs(tmp_path)
    content = path.read_bytes()
    for name in (*private(), str(tmp_path)):
        assert name.encode() not in content
    (begin,) = [record.run for record in read_records(path) if record.HasField("run")]
    assert begin.host == ""
    assert not begin.HasField("git")
    assert {path.name for path in path.parent.glob("files/**/*")} <= {"config.yaml", "wandb-summary.json"}


def test_long_runs_read_back(tmp_path):
    """More than one block of 32 KiB, so that the reader of these tests is tested too."""
    track(tmp_path, rows=[{"step": step, "ce": float(step), "x" * 300: 0.5} for step in range(300)])
    run = the_run(tmp_path)
    assert logs(tmp_path)[0].stat().st_size > 3 * 32 * 1024
    assert run["curves"]["ce"] == [(step, step) for step in range(300)]
    whole, part = read_records(logs(tmp_path)[0]), tmp_path / "part.wandb"
    for size in range(7, logs(tmp_path)[0].stat().st_size, 997):  # as it looks while it is being written
        part.write_bytes(logs(tmp_path)[0].read_bytes()[:size])
        found = read_records(part)
        assert found == whole[: len(found)] and len(found) < len(whole)


def test_runs_of_one_process_are_apart(tmp_path):
    names = [RUN.replace("s0", f"s{seed}") for seed in range(2)]
    for seed, name in enumerate(names):
        track(tmp_path / name, name, rows=[{"step": 1, "ce": float(seed)}])
    runs = [the_run(tmp_path / name) for name in names]
    assert [run["id"] for run in runs] == names
    assert [run["curves"]["ce"] for run in runs] == [[(1, 0)], [(1, 1)]]
    assert [run["exit"] for run in runs] == [0, 0]


def test_an_exception_ends_its_run_as_failed_and_not_the_next(tmp_path):
    with pytest.raises(ZeroDivisionError), WandbTracker() as tracker:
        tracker.start(RUN, CONFIG, [], tmp_path / "a")
        tracker.log(1, {"ce": 1.0})
        tracker.log(2, {"ce": 1 / 0})
    failed = the_run(tmp_path / "a")
    assert failed["exit"] == 1
    assert points(failed) == [(1, 1.0)]
    track(tmp_path / "b")
    assert the_run(tmp_path / "b")["exit"] == 0


KILLED = """
tracker = WandbTracker()
tracker.start(RUN, CONFIG, [], {folder!r})
for row in HISTORY[:6]: tracker.log(row['step'], dict(ce=row['ce']))
print('logged', flush=True); time.sleep(600)
"""


def killed(folder: Path, until=lambda: True, **environment) -> None:
    """Track the first six steps in a process that dies of SIGKILL as soon as `until()`."""
    process = other_process(KILLED.format(folder=str(folder)), **environment)
    assert process.stdout.readline() == "logged\n", process.stderr.read()
    while not until():
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_and_resumed_run_is_one_run(tmp_path):
    killed(tmp_path)
    assert len(logs(tmp_path)) == 1
    track(tmp_path, history=HISTORY[:4], rows=HISTORY[4:])  # the last checkpoint was at step 4
    run = the_run(tmp_path)
    assert points(run) == CURVE
    assert run["exit"] == 0


def test_a_run_tried_again_by_the_same_process_is_one_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), WandbTracker() as tracker:
        tracker.start(RUN, CONFIG, [], tmp_path)
        tracker.log(1, {"ce": 2.0})
        raise KeyboardInterrupt
    track(tmp_path)
    assert points(the_run(tmp_path)) == CURVE


def test_another_run_beside_it_is_left_alone(tmp_path):
    other = RUN.replace("s0", "s1")
    track(tmp_path, other)
    track(tmp_path)
    assert {ended(path)["id"] for path in logs(tmp_path)} == {RUN, other}


def online(server) -> dict[str, str]:
    """Return the environment that leads to `server`."""
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40}


def same_points(run: dict) -> bool:
    return [(row["_step"], pytest.approx(row["ce"])) for row in run["history"]] == CURVE


def test_an_online_run_is_whole_and_names_no_one(tmp_path):
    with serving() as server:
        run_other_process(f"track(Path({str(tmp_path)!r}), timeout=300)", **online(server))
    run = server.runs[RUN]
    assert same_points(run)
    assert run["exit"] == 0
    assert {key: value for key, value in run["config"].items() if key != "_wandb"} == PUBLIC
    content = b"\n".join(server.received)
    for name in (*private(), str(tmp_path)):
        assert name.encode() not in content


@pytest.mark.slow  # W&B sends every 15 seconds
def test_a_killed_online_run_is_resumed_as_one_run(tmp_path):
    with serving() as server:
        killed(tmp_path, until=lambda: server.runs[RUN]["history"], **online(server))
        assert 0 < len(server.runs[RUN]["history"]) < 8
        resumed = f"track(Path({str(tmp_path)!r}), history={HISTORY[:4]}, rows={HISTORY[4:]}, timeout=300)"
        run_other_process(resumed, **online(server))
    assert list(server.runs) == [RUN]
    assert same_points(server.runs[RUN])
    assert server.runs[RUN]["exit"] == 0


def test_a_server_that_does_not_answer_ends_no_run(tmp_path):
    with serving() as server:
        pass  # gone: its port refuses connections
    output = run_other_process(f"track(Path({str(tmp_path)!r}), timeout=2)", **online(server))
    assert "wandb sync" in output
    assert points(the_run(tmp_path)) == CURVE


def test_the_timeout_is_what_wandb_waits_for(tmp_path, monkeypatch):
    import wandb

    given = {}

    def init(settings, **_):
        given.update(settings=settings)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(wandb, "init", init)
    track(tmp_path, mode="online", timeout=7)
    assert given["settings"].init_timeout == given["settings"].finish_timeout == 7


def test_a_server_that_goes_away_ends_no_run(tmp_path):
    code = (
        f"with serving() as server:\n"
        f"    os.environ.update(WANDB_BASE_URL=server.url, WANDB_API_KEY='a' * 40)\n"
        f"    tracker = WandbTracker(timeout=3)\n"
        f"    tracker.start(RUN, CONFIG, [], {str(tmp_path)!r})\n"
        f"for row in HISTORY: tracker.log(row['step'], dict(ce=row['ce']))\n"
        f"tracker.finish(dict(accuracy=0.5))\n"
        f"print('went on')\n"
    )
    assert "went on" in run_other_process(code)


def test_a_bad_key_ends_no_run(tmp_path):
    output = run_other_process(f"track(Path({str(tmp_path)!r}), timeout=2)", WANDB_API_KEY="short")
    assert "offline" in output
    assert points(the_run(tmp_path)) == CURVE


@pytest.mark.parametrize(
    ("key", "mode", "expected"),
    [(None, None, "offline"), ("a" * 40, None, "online"), ("a" * 40, "offline", "offline"), (None, "disabled", None)],
)
def test_mode_follows_key_and_environment(tmp_path, key, mode, expected):
    environment = {"WANDB_API_KEY": key, "WANDB_MODE": mode}
    code = "import wandb; print('mode', WandbTracker()._mode(wandb))"
    output = run_other_process(code, **{name: value for name, value in environment.items() if value})
    assert f"mode {expected or 'disabled'}" in output


def test_a_login_counts_as_a_key(tmp_path):
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {'a' * 40}\n")
    code = "import wandb; print('mode', WandbTracker()._mode(wandb))"
    assert "mode online" in run_other_process(code, WANDB_BASE_URL="https://wandb.example.org")
    assert "mode offline" in run_other_process(code, WANDB_BASE_URL="https://elsewhere.example.org")


def test_disabled_leaves_nothing(tmp_path):
    track(tmp_path, mode="disabled")
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"'of'.*offline"):
        WandbTracker(mode="of")


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_an_error_of_wandb_is_said_and_ends_no_run(tmp_path, monkeypatch, caplog, broken):
    import wandb

    class Run:
        offline, starting_step, summary = True, 0, {}

        def log(self, *_, **__): ...

        def finish(self, **_): ...

    def fail(*_, **__):
        raise RuntimeError("out of order")

    if broken != "init":
        monkeypatch.setattr(Run, broken, fail)
    monkeypatch.setattr(wandb, "init", fail if broken == "init" else lambda **_: Run())
    with caplog.at_level(logging.WARNING):
        track(tmp_path)
    assert caplog.text.count("out of order") == 1


def test_what_the_server_knows_is_not_sent_again(tmp_path, monkeypatch):
    import wandb

    sent = []

    class Run:
        offline, starting_step, summary, url = False, 5, {}, "https://wandb.example.org/x"

        def log(self, values, step):
            sent.append((step, values))

        def finish(self, **_): ...

    monkeypatch.setattr(wandb, "init", lambda **_: Run())
    track(tmp_path, history=[*HISTORY[:6], {"step": 6, "eval_ce": 0.5}], rows=HISTORY[6:], mode="online")
    assert [step for step, _ in sent] == [5, 6, 6, 7, 8]


def test_without_wandb_a_run_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    track(tmp_path)
    assert "logger=none" in caplog.text


def test_no_logger_does_not_touch_wandb():
    code = (
        "import sys; from ntl.runs.tracking import NoTracker\n"
        "t = NoTracker(); t.start('x', {}, [], '.'); t.log(1, {}); t.finish({})\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'wandb']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(("name", "kind"), [("wandb", WandbTracker), ("none", NoTracker)])
def test_configuration_fits(name, kind):
    options = yaml.safe_load((ROOT / "conf" / "logger" / f"{name}.yaml").read_text())
    assert options.pop("_target_") == f"ntl.runs.tracking.{kind.__name__}"
    tracker = kind(**options)
    if kind is WandbTracker:  # the file says what the signature says
        assert vars(tracker) == vars(WandbTracker())
    json.dumps(options)
