"""Downloads from a local server: resumed, checked by hash, unpacked, and prepared end to end."""

import hashlib
import io
import re
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from data_prep import download
from data_prep.arithmetic import Arithmetic
from data_prep.base import DataError

CONTENT = bytes(range(256)) * 20_000  # 5 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """Serves `content` at any path; breaks the first `breaks` transfers after `sent` bytes each."""

    content: bytes = CONTENT
    etag: str | None = '"1"'
    breaks: int = 0
    sent: int = 2**21
    status: int = 200
    ranges: list[str | None] = field(default_factory=list)  # the Range header of each request
    url: str = ""


@contextmanager
def serve(server: Server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked = self.headers.get("Range")
            server.ranges.append(asked)
            start = 0
            if asked and self.headers.get("If-Range") in (None, server.etag):
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            body = server.content[start:]
            if server.status != 200:
                self.send_response(server.status)
                body = b"no"
            elif start and not body:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
            else:
                self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            if server.etag:
                self.send_header("ETag", server.etag)
            self.end_headers()
            if server.breaks:
                server.breaks -= 1
                self.wfile.write(body[: server.sent])
                self.wfile.flush()
                self.close_connection = True  # before Content-Length is reached
            else:
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/folder/file.bin"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)


def fetch(server: Server, folder, sha256: str | None = SHA256):
    return download.fetch(server.url, folder, sha256, progress=False)


def test_a_file_is_downloaded_once_and_its_hash_returned(tmp_path):
    with serve(Server()) as server:
        path, found = fetch(server, tmp_path)
        assert path == tmp_path / "file.bin" and path.read_bytes() == CONTENT and found == SHA256
        fetch(server, tmp_path)
    assert server.ranges == [None]
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["file.bin"]


def test_a_transfer_that_breaks_is_continued_at_once(tmp_path):
    with serve(Server(breaks=2)) as server:
        path, _ = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=2097152-", "bytes=4194304-"]


def test_a_download_that_failed_is_continued_by_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    with serve(Server(breaks=1)) as server:
        with pytest.raises(DataError, match=r"cannot download http://.*2,097,152 bytes are kept.*continues from there"):
            fetch(server, tmp_path)
        assert not (tmp_path / "file.bin").exists()
        path, _ = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT and server.ranges == [None, "bytes=2097152-"]


def test_a_file_that_has_changed_meanwhile_is_downloaded_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    with serve(Server(breaks=1, content=b"x" * 3_000_000)) as server:
        with pytest.raises(DataError):
            fetch(server, tmp_path)
        server.content, server.etag = CONTENT, '"2"'
        path, _ = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_server_that_does_not_identify_versions_sends_the_file_whole(tmp_path):
    with serve(Server(breaks=1, etag=None)) as server:
        path, _ = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT and server.ranges == [None, None]


def test_a_partial_file_that_is_whole_already_is_taken(tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    (tmp_path / "file.bin.part.etag").write_text('"1"')
    with serve(Server()) as server:
        path, _ = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT and server.ranges == [f"bytes={len(CONTENT)}-"]


def test_a_hash_that_does_not_match_stops_and_keeps_nothing(tmp_path):
    other = hashlib.sha256(b"other").hexdigest()
    with serve(Server()) as server, pytest.raises(DataError) as error:
        fetch(server, tmp_path, other)
    message = str(error.value)
    assert server.url in message and other in message and SHA256 in message and "sha256=" in message
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]


def test_a_missing_file_is_not_asked_for_again(tmp_path):
    with serve(Server(status=404)) as server, pytest.raises(DataError, match="404"):
        fetch(server, tmp_path)
    assert len(server.ranges) == 1


def archive() -> bytes:
    """A small archive in the published layout."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for number, (regime, module) in enumerate(
            [
                ("train-easy", "arithmetic__mul"),
                ("train-easy", "arithmetic__div"),
                ("interpolate", "arithmetic__mul"),
                ("extrapolate", "arithmetic__mul_big"),
            ]
        ):
            text = "".join(f"{n} * {number + 2}\n{n * (number + 2)}\n" for n in range(30)).encode()
            member = tarfile.TarInfo(f"mathematics_dataset-v1.0/{regime}/{module}.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return packed.getvalue()


OPTIONS = {
    "source": "download",
    "modules": ["arithmetic__mul"],
    "interpolation": None,
    "extrapolation": ["arithmetic__mul_big"],
    "train_size": 20,
    "validation_size": 3,
    "test_size": 10,
}


@pytest.mark.parametrize("trusted", [False, True])
def test_published_files_are_downloaded_unpacked_and_prepared(tmp_path, trusted):
    content = archive()
    found = hashlib.sha256(content).hexdigest()
    with serve(Server(content=content)) as server:
        dataset = Arithmetic(url=server.url, sha256=None if trusted else found, **OPTIONS)
        data = dataset.prepare(tmp_path, progress=False)
        again = Arithmetic(url=server.url, sha256=None if trusted else found, **OPTIONS | {"seed": 1})
        again.prepare(tmp_path, progress=False)
    assert len(server.ranges) == 1
    assert data.manifest["sizes"]["extrapolate"] == 10 and data.manifest["sizes"]["train"] > 0
    source = data.manifest["source"]
    assert source["sha256"] == found and source["checked"] is not trusted and source["url"] == server.url
    unpacked = [path.name for path in (tmp_path / "downloads").rglob("*.txt")]
    assert sorted(unpacked) == ["arithmetic__mul.txt", "arithmetic__mul.txt", "arithmetic__mul_big.txt"]


def test_an_archive_without_the_wanted_files_is_named(tmp_path):
    content = archive()
    options = OPTIONS | {"modules": ["numbers__place_value"]}
    with serve(Server(content=content)) as server, pytest.raises(DataError, match=r"holds no .*numbers__place_value"):
        Arithmetic(url=server.url, sha256=None, **options).prepare(tmp_path, progress=False)


def test_something_that_is_no_archive_is_named(tmp_path):
    with serve(Server()) as server, pytest.raises(DataError, match="no readable tar archive"):
        Arithmetic(url=server.url, sha256=None, **OPTIONS).prepare(tmp_path, progress=False)
