"""A W&B server on this machine: enough for runs to begin, resume and end, and a memory of all that it was sent."""

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Attributes: url; received, the raw bytes of every request; runs, {id: {"config", "history", "exit"}}."""

    def __init__(self):
        self.received: list[bytes] = []
        self.runs: dict[str, dict] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                server.received += [self.path.encode(), str(self.headers).encode(), body]
                reply = json.dumps(server._reply(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            do_GET = do_POST = do_PUT = answer

        return Handler

    def _reply(self, path: str, body: bytes) -> dict:
        if path.endswith("/graphql"):
            request = json.loads(body)
            return {"data": self._query(request["operationName"], request["variables"])}
        if path.endswith("/file_stream"):
            self._stream(path.split("/")[-2], json.loads(body))
        return {}

    def _query(self, name: str, given: dict) -> dict:
        project = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": "team"}}
        if name == "RunResumeStatus":
            run = self.runs.get(given["name"])
            return {"model": {**project, "bucket": run and self._bucket(given["name"], run)}}
        if name == "UpsertBucket":
            run = self.runs.setdefault(given["name"], {"config": {}, "history": [], "exit": None})
            run["config"] = {key: value["value"] for key, value in json.loads(given["config"]).items()}
            bucket = {**self._bucket(given["name"], run), "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": not run["history"]}}
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.url}/upload/{file}"} for file in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def _bucket(self, name: str, run: dict) -> dict:
        last = [json.dumps(run["history"][-1])] if run["history"] else []
        return {
            "id": "b", "name": name, "displayName": name, "summaryMetrics": "{}", "logLineCount": 0,
            "historyLineCount": len(run["history"]), "eventsLineCount": 0, "historyTail": json.dumps(last),
            "eventsTail": "[]", "tags": [], "notes": None, "wandbConfig": json.dumps({"t": 1}),
            "config": json.dumps({key: {"value": value} for key, value in run["config"].items()}),
        }  # fmt: skip

    def _stream(self, name: str, sent: dict) -> None:
        run = self.runs[name]
        if history := sent.get("files", {}).get("wandb-history.jsonl"):
            run["history"][history["offset"] :] = [json.loads(line) for line in history["content"]]
        if sent.get("complete"):
            run["exit"] = sent.get("exitcode")


@contextmanager
def serving():
    """Serve until the block is left."""
    server = Server()
    threading.Thread(target=server._http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._http.server_close()
