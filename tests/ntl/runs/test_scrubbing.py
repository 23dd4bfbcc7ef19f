"""What leaves the machine names neither its user, nor the machine, nor its folders, nor a secret."""

from pathlib import Path

import pytest
from helpers.cpu import at_most

from ntl.runs import scrubbing as privacy
from ntl.runs.scrubbing import scrub, without_names, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No such file: '/mnt/disk 1/data/train.jsonl'", "No such file: '…/train.jsonl'"),
        ("at /usr/lib/python3.11/json/decoder.py:355", "at …/decoder.py:355"),
        ("(/a/b/c.py)", "(…/c.py)"),
        (r"open C:\Users\somebody\x.txt failed", "open …/x.txt failed"),
        ("file:///srv/data/x", "…/x"),
        ("see https://example.org/a/b and google/t5", "see https://example.org/a/b and google/t5"),
        ("1/2 of the steps/s, km/h, ./data/x, ~/x/y", "1/2 of the steps/s, km/h, ./data/x, ~/x/y"),
    ],
)
def test_paths_are_cut(text, expected):
    assert without_paths(text) == expected


def test_own_folders_are_shortened_and_others_with_the_same_start_are_not():
    assert without_paths(f"{Path.cwd()}/ntl/runs/run.py") == "./ntl/runs/run.py"
    assert without_paths(f"{Path.home()}/x") in ("~/x", "./x")
    assert without_paths(f"{Path.cwd()}-other/ntl/runs/run.py") == "…/run.py"


def test_names_and_secrets_are_replaced(monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "node17.cluster.example")
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "agnes")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = (
        "agnes on node17.cluster.example (node17): key 0123456789abcdef is false, https://agnes:pw@hub.example/x, "
        "magnesium, hf_" + "a" * 30
    )
    assert without_names(text) == (
        "<user> on <host> (<host>): key <secret> is false, https://hub.example/x, magnesium, <secret>"
    )


def test_scrub_reaches_every_string_and_leaves_numbers():
    value = {"a": ["/x/y/z", 1, None, {"b": "/x/y"}], "c": 0.5}
    assert scrub(value) == {"a": ["…/z", 1, None, {"b": "…/y"}], "c": 0.5}


@pytest.mark.parametrize("text", ["y" * 300_000, "a/b " * 50_000, "'/x" * 50_000, "/a" * 100_000, "://" * 50_000])
def test_long_texts_take_no_time(text):
    with at_most(5):
        without_names(text)
