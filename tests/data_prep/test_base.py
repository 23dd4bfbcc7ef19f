"""Preparation that all data sets share: leaks, the manifest, verification, atomicity, errors."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from data_prep import base
from data_prep.base import DataError, Dataset, Row, Work
from ntl.options import as_yaml, options_of

ROOT = Path(__file__).resolve().parents[2]


def row(question: str, answer: str = "1") -> Row:
    return {"question": question, "answer": answer}


@dataclass
class Tiny(Dataset):
    """Splits given by the test."""

    sources: ClassVar = {"generator": "given", "local": "folder=…"}
    licence: ClassVar = "none"

    name: str = "tiny"
    size: int = 3
    given: dict = field(default_factory=dict)

    def produce(self, work: Work) -> Iterator[tuple[str, Iterable[Row]]]:
        for split in ("test", "validation", "train"):
            yield split, iter(self.given[split])


GIVEN = {
    "test": [row("a"), row("b"), row("b")],
    "validation": [row("b"), row("c"), row("d")],
    "train": [row("a"), row("b"), row("c"), row("e"), row("e"), row("f", "2.5")],
}


def test_questions_of_a_test_split_leave_validation_and_training_and_are_counted(tmp_path):
    data = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    assert [r["question"] for r in data.rows("train")] == ["e", "e", "f"]
    assert [r["question"] for r in data.rows("validation")] == ["c", "d"]
    assert [r["question"] for r in data.rows("test")] == ["a", "b", "b"]  # the test is never touched
    assert data.manifest["dropped"] == {"train": {"test": 2, "validation": 1}, "validation": {"test": 1}}
    assert data.manifest["repeated"] == {"train": 1, "validation": 0, "test": 1}
    assert data.splits == ("train", "validation", "test")


def test_a_split_that_loses_all_its_questions_is_an_error(tmp_path):
    given = GIVEN | {"train": [row("a"), row("c")]}
    with pytest.raises(DataError, match="split train is empty, all its questions stand in others"):
        Tiny(given=given).prepare(tmp_path, progress=False)
    assert not list(tmp_path.glob("tiny/[!.]*"))


def test_manifest_tells_what_was_prepared_and_holds_no_absolute_path(tmp_path):
    data = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    text = (data.folder / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert data.manifest["dataset"] == "tiny" and data.manifest["licence"] == "none"
    assert data.manifest["sizes"] == {"train": 3, "validation": 2, "test": 3}
    assert data.manifest["source"] == {"kind": "generator"}
    assert data.manifest["options"]["size"] == 3
    assert "source" not in data.manifest["options"] and "folder" not in data.manifest["options"]
    for name, entry in data.manifest["files"].items():
        assert entry["sha256"] == base.file_sha256(data.folder / name)


def test_preparing_again_verifies_and_does_no_work(tmp_path, monkeypatch):
    first = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    monkeypatch.setattr(Tiny, "produce", lambda *_: pytest.fail("prepared twice"))
    again = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    assert again.folder == first.folder and again.fingerprint == first.fingerprint


def test_other_options_lie_in_another_folder_and_the_fingerprint_is_of_the_content(tmp_path):
    first = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    other = Tiny(given=GIVEN, size=4).prepare(tmp_path, progress=False)  # the option changes nothing in the rows
    assert other.folder != first.folder and other.fingerprint == first.fingerprint
    changed = Tiny(given=GIVEN | {"train": [row("z")]}).prepare(tmp_path, progress=False)
    assert changed.fingerprint != first.fingerprint


def test_a_changed_file_stops_with_its_name_both_hashes_and_what_to_do(tmp_path):
    data = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    path = data.folder / "validation.jsonl"
    expected = data.manifest["files"]["validation.jsonl"]["sha256"]
    path.write_text(path.read_text().replace("c", "x"))
    with pytest.raises(DataError) as error:
        Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    message = str(error.value)
    assert str(path) in message and expected in message and base.file_sha256(path) in message
    assert f"Remove the folder {data.folder}" in message


@pytest.mark.parametrize("damage", ["missing", "manifest"])
def test_a_missing_file_or_broken_manifest_is_named(tmp_path, damage, record_property):
    data = Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    if damage == "missing":
        (data.folder / "train.jsonl").unlink()
    else:
        (data.folder / "manifest.json").write_text('{"files": ')
    name = "train.jsonl" if damage == "missing" else "manifest.json"
    with pytest.raises(DataError, match=re.escape(str(data.folder / name))):
        Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    record_property("faults", 1)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "a", "answer": "1"', "not JSON"),
        ('["a", "1"]', "got list"),
        ('{"question": "a"}', "`answer` is None"),
        ('{"question": "a", "answer": 1}', "`answer` is 1"),
        ('{"question": " ", "answer": "1"}', "question is empty"),
        ('{"question": "a", "answer": "one"}', "holds no number"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "ok", "answer": "-1.5"}\n\n' + line + "\n")
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}, line 3: .*{re.escape(complaint)}"):
        list(base.read_jsonl(path, "number"))


def test_text_answers_need_no_number_and_bytes_that_are_no_utf8_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "a", "answer": ""}\r\n{"question": "\xff", "answer": "b"}\n')
    rows = base.read_jsonl(path, "text")
    assert next(rows) == {"question": "a", "answer": ""}
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        next(rows)


def test_answers_without_a_number_stop_the_preparation_of_a_number_dataset(tmp_path):
    given = GIVEN | {"validation": [row("q", "two")]}
    with pytest.raises(DataError, match="tiny, validation, row 1: the answer 'two' holds no number"):
        Tiny(given=given).prepare(tmp_path, progress=False)
    assert not list(tmp_path.glob("tiny/[!.]*")) and not list(tmp_path.glob("tiny/.*-*"))


def local_splits(folder: Path) -> Path:
    folder.mkdir()
    for split, rows in GIVEN.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_ready_made_splits_of_a_local_folder_are_taken_without_their_leaks(tmp_path):
    folder = local_splits(tmp_path / "mine")
    data = Tiny(source="local", folder=str(folder)).prepare(tmp_path / "data", progress=False)
    assert data.manifest["sizes"] == {"train": 3, "validation": 2, "test": 3}
    assert "whatever the options say" in data.manifest["source"]["note"]
    assert str(tmp_path) not in json.dumps(data.manifest)
    (folder / "train.jsonl").write_text(json.dumps(row("new")) + "\n")  # an edited source is prepared anew
    again = Tiny(source="local", folder=str(folder)).prepare(tmp_path / "data", progress=False)
    assert [r["question"] for r in again.rows("train")] == ["new"]


def test_a_prepared_folder_given_as_source_must_be_of_the_options_asked_for(tmp_path):
    made = Tiny(given=GIVEN).prepare(tmp_path / "data", progress=False)
    same = Tiny(source="local", folder=str(made.folder), given=GIVEN).prepare(tmp_path / "copy", progress=False)
    assert same.fingerprint == made.fingerprint
    with pytest.raises(DataError, match=r"prepared with size=3, but asked for is size=4"):
        Tiny(source="local", folder=str(made.folder), given=GIVEN, size=4).prepare(tmp_path / "copy", progress=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"tiny: cannot prepare the data in .*file/tiny.*choose another place"):
        Tiny(given=GIVEN).prepare(tmp_path / "file", progress=False)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(base.os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*The disk is full: make room"):
        Tiny(given=GIVEN).prepare(tmp_path, progress=False)
    assert not list(tmp_path.glob("tiny/[!.]*")) and not list(tmp_path.glob("tiny/.*-*"))


def test_what_a_killed_process_left_is_removed(tmp_path):
    dataset = Tiny(given=GIVEN)
    left = dataset.location(tmp_path).parent / f".{dataset.location(tmp_path).name}-abc" / "data"
    left.mkdir(parents=True)
    (left / "train.jsonl").write_text("{")
    data = dataset.prepare(tmp_path, progress=False)
    assert not left.exists() and data.manifest["sizes"]["train"] == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"source": "hub"}, "source: got 'hub', expected one of generator, local"),
        ({"source": "local"}, "source=local: got no folder"),
        ({"source": "local", "folder": "nowhere"}, "folder: got 'nowhere', which is no folder"),
    ],
)
def test_bad_sources_are_refused_before_any_work(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tiny(**options).check()


# The command line


def command(*arguments: str, cwd: Path = ROOT, **options) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "data_prep", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, **options,
    )  # fmt: skip


def test_help_lists_every_dataset_with_sources_and_licence():
    result = command("--help")
    assert result.returncode == 0
    for name in base.names():
        assert re.search(rf"^  {name}: \S", result.stdout, re.MULTILINE)
    assert {"arithmetic", "mathematics", "multiplication"} <= set(base.names())
    assert "source=download" in result.stdout and "Apache-2.0" in result.stdout


def test_help_of_a_dataset_shows_its_options():
    result = command("arithmetic", "--help")
    assert result.returncode == 0
    for name, option in options_of(base.dataset_class("arithmetic")).items():
        if name != "name":
            (shown,) = re.findall(rf"^  {name}=(.*)\n((?:      .*\n)+)", result.stdout, re.MULTILINE)
            assert shown[0] == as_yaml(option.default)
            assert option.meaning in " ".join(shown[1].split())
    assert "  train_size=100000\n      questions of each module at each difficulty" in result.stdout
    assert "(one of generator, download, local; not part of a run's identity)" in result.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("aritmetic",), ("arithmetic", "train_sise=3")])
def test_answers_at_once_come_without_heavy_imports(arguments):
    code = (
        "import sys; from data_prep.__main__ import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'numpy', 'sympy', 'datasets', 'mathematics_dataset'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["aritmetic"], "got 'aritmetic', which does not exist; nearest: arithmetic"),
        (["arithmetic", "train_sise=3"], "got 'train_sise', which arithmetic does not have; nearest: train_size"),
        (["arithmetic", "train_size"], "got 'train_size', expected key=value"),
        (["arithmetic", "modules=[a"], "cannot read 'modules=[a'"),
        (["arithmetic", "modules=[arithmetic__ad_or_sub]"], "did you mean arithmetic__add_or_sub"),
        (["arithmetic", "difficulties=[eazy]"], "did you mean easy"),
        (["arithmetic", "train_size=many"], "train_size: got 'many', expected an integer of at least 1"),
        (["arithmetic", "train_size=0"], "train_size: got 0"),
        (["arithmetic", "train_size=null"], "train_size: got None"),
        (["arithmetic", "interpolation=[arithmetic__mul@simple]"], "expected one of easy, medium, hard"),
        (["arithmetic", "sha256=abc"], "expected 64 hexadecimal digits"),
        (
            ["multiplication", "extrapolation_digits=3"],
            "extrapolation_digits: got 3, expected an integer of at least 4",
        ),
    ],
)
def test_wrong_commands_say_got_expected_and_what_to_do(arguments, complaint, capsys):
    from data_prep.__main__ import main

    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


def test_the_command_prepares_below_root_and_prints_where(tmp_path):
    options = ["multiplication", "train_size=20", "test_size=5", "validation_size=5"]
    result = command(*options, "--root", "here", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "here" / "multiplication").glob("[!.]*")
    assert f"multiplication is ready in {Path('here') / 'multiplication' / folder.name}" in result.stdout
    assert json.loads((folder / "manifest.json").read_text())["options"]["train_size"] == 20
    (folder / "train.jsonl").write_text("{}\n")
    result = command(*options, "--root", "here", cwd=tmp_path)
    assert result.returncode == 1 and "hash does not match" in result.stderr and "Traceback" not in result.stderr


def test_a_dataset_without_options_has_the_declared_defaults():
    for name in base.names():
        assert vars(base.load(name)) == vars(base.dataset_class(name)()), name
