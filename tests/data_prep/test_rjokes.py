"""rJokes: scores and jokes, leaks out of training, sizes drawn by seed, the published files by download or folder."""

import functools
import gzip
import hashlib
import math
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.shared_data import shared

from data_prep import download
from data_prep.base import DataError
from data_prep.rjokes import RJokes

TEST = [(score % 4, f"test {score}") for score in range(20)]
DEV = [(score % 5, f"dev {score}") for score in range(40)] + [(9, "test 3"), (9, "test 3"), (9, "test 4")]
TRAIN = [(score % 6, f"train {score}\twith a tab") for score in range(60)] + [(8, "test 5"), (8, "dev 1")]
FILES = {"train": TRAIN, "dev": DEV, "test": TEST}


def published(folder: Path, *names: str, packed: bool = True) -> str:
    folder.mkdir(exist_ok=True)
    for name in names:
        content = "".join(f"{score}\t{joke}\n" for score, joke in FILES[name]).encode()
        path = folder / f"{name}.tsv{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return str(folder)


def prepare(root: Path, folder: str, **options):
    return RJokes(source="local", folder=folder, **options).prepare(root, progress=False)


def questions(data, split: str) -> list[str]:
    return [row["question"] for row in data.rows(split)]


@pytest.mark.parametrize("packed", [True, False])
def test_the_published_files_are_the_splits_without_jokes_of_the_test(tmp_path, packed):
    data = prepare(tmp_path / "data", published(tmp_path / "files", "train", "dev", "test", packed=packed))
    assert data.rows("test") == [{"question": joke, "answer": str(score)} for score, joke in TEST]
    assert data.rows("validation") == [{"question": joke, "answer": str(score)} for score, joke in DEV[:40]]
    assert data.rows("train") == [{"question": joke, "answer": str(score)} for score, joke in TRAIN[:60]]
    assert data.manifest["dropped"] == {"validation": {"test": 3}, "train": {"test": 1, "validation": 1}}


def test_without_the_train_file_dev_is_divided(tmp_path):
    data = prepare(tmp_path / "data", published(tmp_path / "files", "dev", "test"), validation_size=7)
    assert "dev is divided" in data.manifest["source"]["note"]
    assert data.manifest["sizes"] == {"train": 33, "validation": 7, "test": 20}
    assert set(questions(data, "train")) | set(questions(data, "validation")) == {joke for _, joke in DEV[:40]}
    assert data.manifest["dropped"] == {"validation": {}, "train": {"test": 3}}
    tenth = prepare(tmp_path / "data", published(tmp_path / "files", "dev", "test"))
    assert tenth.manifest["sizes"]["validation"] == 4


@pytest.mark.parametrize("names", [("train", "dev", "test"), ("dev", "test")])
def test_sizes_are_exact_although_jokes_leak_and_drawn_by_seed(tmp_path, names):
    folder = published(tmp_path / "files", *names)
    sizes = {"train_size": 25, "validation_size": 10, "test_size": 12}
    one, same, other = (prepare(tmp_path / str(n), folder, seed=n // 2, **sizes) for n in range(3))
    assert one.manifest["sizes"] == {"train": 25, "validation": 10, "test": 12}
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert not set(questions(one, "test")) & set(questions(one, "train") + questions(one, "validation"))


@pytest.mark.parametrize("option", ["train_size", "validation_size", "test_size"])
def test_more_than_there_is_is_refused(tmp_path, option):
    folder = published(tmp_path / "files", "dev", "test")
    with pytest.raises(DataError, match=rf"{option}: got 41, but there are .* Choose fewer"):
        prepare(tmp_path / "data", folder, **{option: 41})
    with pytest.raises(ValueError, match=f"{option}: got 0, expected an integer of at least 1 or null"):
        prepare(tmp_path / "data", folder, **{option: 0})


@pytest.mark.parametrize("line", ["no tab", "3.5\ta joke", "x\ta joke", "3\t ", "\ta joke"])
def test_a_bad_line_is_named(tmp_path, line):
    folder = published(tmp_path / "files", "dev", "test", packed=False)
    with open(tmp_path / "files" / "dev.tsv", "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"dev.tsv, line 44: got .*expected a score, a tab and a joke"):
        prepare(tmp_path / "data", folder)


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_file_is_named(tmp_path, damage):
    folder = published(tmp_path / "files", "dev", "test")
    path = tmp_path / "files" / "test.tsv.gz"
    path.write_bytes(path.read_bytes()[:-20] if damage == "cut" else b"not packed at all")
    with pytest.raises(DataError, match=r"test.tsv.gz: cannot be read beyond line \d+ .*Get the file anew"):
        prepare(tmp_path / "data", folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"dev.tsv.gz: missing"):
        prepare(tmp_path / "data", published(tmp_path / "files", "train", "test"))


@contextmanager
def serve(folder: Path):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


def test_a_download_gives_what_the_files_give_and_is_checked(tmp_path):
    folder = published(tmp_path / "files", "train", "dev", "test")
    local = prepare(tmp_path / "local", folder)
    hashes = {name: hashlib.sha256((Path(folder) / f"{name}.tsv.gz").read_bytes()).hexdigest() for name in FILES}
    with serve(Path(folder)) as url:
        known = RJokes(url=url, sha256=hashes | {"train": None}).prepare(tmp_path / "data", progress=False)
        wrong = RJokes(url=f"{url}/", sha256=hashes | {"dev": "0" * 64})
        with pytest.raises(DataError, match=r"dev.tsv.gz: the hash does not match"):
            wrong.prepare(tmp_path / "data", progress=False)
    assert known.fingerprint == local.fingerprint
    assert known.manifest["source"] == {"kind": "download", "url": url, "sha256": hashes}


def test_a_server_that_never_answers_is_given_up_soon(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    with pytest.raises(DataError, match=r"cannot download http://127.0.0.1:9/train.tsv.gz"):
        RJokes(url="http://127.0.0.1:9").prepare(tmp_path, progress=False)
    assert sum(pauses) <= 5


def test_hashes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="expected 64 hexadecimal digits for each of train, dev and test"):
        RJokes(sha256={"train": None, "dev": "abc", "test": None}).check()
    with pytest.raises(ValueError, match="expected 64 hexadecimal digits for each"):
        RJokes(sha256={"train": None}).check()


def test_published_files_without_train_have_the_known_counts(tmp_path):
    data = prepare(tmp_path, str(shared("rjokes")))
    sizes, dropped = data.manifest["sizes"], data.manifest["dropped"]
    assert dropped["train"]["test"] == 303 and "test" not in dropped["validation"]
    assert sizes["test"] == 43_246 and sizes["validation"] == 4324
    repeats = dropped["train"].get("validation", 0)
    assert sizes["train"] == 43_246 - 303 - 4324 - repeats and repeats < 40
    scores = [int(row["answer"]) for row in data.rows("test")]
    mean = sum(scores) / len(scores)
    assert round(mean, 3) == 1.613 and min(scores) == 0 and max(scores) == 11
    training = [int(row["answer"]) for row in data.rows("train")]
    constant = sum(training) / len(training)
    assert round(math.sqrt(sum((score - constant) ** 2 for score in scores) / len(scores)), 3) == 1.829
    assert not {row["question"] for row in data.rows("test")} & {row["question"] for row in data.rows("train")}
