"""The public workflow: it parses, runs targets that the Makefile has, pins what it uses; the audit fails rightly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def test_the_workflow_runs_targets_that_exist():
    targets = set(re.findall(r"(?m)^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text()))
    called = [word for step in STEPS for word in re.findall(r"make ([a-z-]+)", step.get("run", ""))]
    assert called == ["test", "test-slow", "audit"] and set(called) <= targets
    assert [step["run"] for step in JOBS["audit"]["steps"] if "run" in step] == ["make audit"]


def test_actions_are_pinned():
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action) for action in used)


@pytest.mark.parametrize(
    ("printed", "failed", "code", "said"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', "", 0, "No advisory is known on any of 1"),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]}',
            "Found 1 known vulnerability",
            1,
            "a 1: X-1, fixed in 2",
        ),
        ("", "requests.exceptions.ConnectionError: Max retries exceeded", 0, "cannot be reached: nothing was checked"),
        ("", "usage: pip-audit", 1, "failed"),
    ],
)
def test_an_audit_fails_for_advisories_alone(tmp_path, printed, failed, code, said):
    tool = tmp_path / "tool"
    status = 1 if failed else 0
    tool.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdout.write({printed!r})\nsys.exit({failed!r} or {status})\n"
    )
    tool.chmod(0o755)
    done = subprocess.run([sys.executable, ".ci/audit.py", tool], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout + done.stderr
