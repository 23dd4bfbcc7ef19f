"""A server on this machine that speaks as much of the hub's protocol as reading models and data sets needs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository: its id and files, and what was asked of it."""

    repository: str
    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    requests: list[str] = field(default_factory=list)
    breaks: int = 0  # transfers of parquet files and weights that end halfway
    stalls: bool = False  # the next such transfer stops halfway, and goes no further
    stalled: threading.Event = field(default_factory=threading.Event)  # it has come to that

    def info(self, name: str) -> dict:
        content = self.files[name]
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}


def parquet(rows: Sequence[Mapping]) -> bytes:
    """Return rows as the bytes of a parquet file."""
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return file.getvalue()


@contextmanager
def serve(repository: str, config: str, splits: Mapping[str, Sequence[Mapping]]) -> Iterator[Hub]:
    """Serve one configuration of a data set repository, with one parquet file for each split."""
    names = {split: f"{config}/{split}-00000-of-00001.parquet" for split in splits}
    card = {"configs": [{"config_name": config, "data_files": [{"split": s, "path": f} for s, f in names.items()]}]}
    files = {names[split]: parquet(rows) for split, rows in splits.items()}
    with serve_files(repository, files | {"README.md": f"---\n{json.dumps(card)}\n---\n".encode()}, "datasets") as hub:
        yield hub


@contextmanager
def serve_files(repository: str, files: Mapping[str, bytes], kind: str = "models") -> Iterator[Hub]:
    """Serve a repository of "datasets" or "models" with these files."""
    hub = Hub(repository, dict(files))
    at = re.escape(repository if kind == "models" else f"{kind}/{repository}")
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(length) if (length := int(self.headers.get("Content-Length") or 0)) else None
            path = unquote(urlsplit(self.path).path)
            part = f" from {asked.removeprefix('bytes=')}" if (asked := self.headers.get("Range")) else ""
            hub.requests.append(f"{self.command} {path}{part}")
            if found := re.fullmatch(rf"/{at}/resolve/[^/]+/(.+)", path):
                return self.file(found[1])
            if path == f"/api/{kind}/{repository}" or path.startswith(f"/api/{kind}/{repository}/revision/"):
                siblings = [{"rfilename": name} for name in hub.files]
                return self.json({"id": repository, "sha": COMMIT, "siblings": siblings, "tags": []})
            if found := re.fullmatch(rf"/api/{kind}/{re.escape(repository)}/tree/[^/]+/?(.*)", path):
                return self.json([hub.info(name) for name in hub.files if name.startswith(found[1])])
            if path.startswith(f"/api/{kind}/{repository}/paths-info/"):
                return self.json([hub.info(name) for name in hub.files])
            return self.send(404, b"", {})

        do_HEAD = do_POST = do_GET

        def file(self, name: str) -> None:
            if name not in hub.files:
                return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            content = hub.files[name]
            tag = {"ETag": f'"{hub.info(name)["oid"]}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
                first, last = int(asked[1]), int(asked[2] or len(content) - 1)
                tag["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                return self.send(206, content[first : last + 1], tag)
            return self.send(200, content, tag)

        def json(self, value: object) -> None:
            self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                large = self.path.endswith((".parquet", ".safetensors")) and status in (200, 206)
                if large and hub.stalls:
                    hub.stalls = False
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    hub.stalled.set()
                    closing.wait()
                    return
                if large and hub.breaks:
                    hub.breaks -= 1
                    body = body[: len(body) // 2]
                    self.close_connection = True
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        closing.set()
        server.shutdown()
        server.server_close()


class Silent(socketserver.ThreadingTCPServer):
    """A server that hangs up on everyone, and counts them."""

    attempts = 0

    def process_request(self, request, client_address):
        self.attempts += 1
        self.shutdown_request(request)


@contextmanager
def out_of_reach() -> Iterator[Silent]:
    """A hub that never answers, at `url`; `attempts` counts the connections to it."""
    with Silent(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
