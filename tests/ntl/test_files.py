"""Files are hashed whole, and written whole or not at all."""

import hashlib
import os

import pytest

from ntl.files import durable, file_sha256, write_atomically


def test_writing_leaves_the_old_content_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "x"
    assert write_atomically(path, b"old")
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(path.parent) == ["x"]
    assert write_atomically(path, b"new")
    assert not write_atomically(path, b"newer", exclusive=True)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["x"]


def test_text_is_the_same_bytes_on_every_system(tmp_path):
    path = tmp_path / "x"
    with durable(path) as file:
        file.write("λ\n")
    assert path.read_bytes() == "λ\n".encode()
    with pytest.raises(FileExistsError), durable(path, "xb"):
        pass


def test_the_hash_is_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "x").write_bytes(content)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
