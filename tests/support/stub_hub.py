"""A hub on loopback that knows one model, and datasets with their commits."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

MODEL = "some/model"


@dataclass(slots=True)
class StubHub:
    """What it has; tests may change it while it answers.

    hub.commits["1" * 40] = {"train.jsonl": b"..."}
    hub.newest = "1" * 40
    """

    address: str = ""
    kind: str = "datasets"
    """Or `models`."""
    dataset: str = "people/sums"
    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Files of the dataset by commit."""
    newest: str = ""
    by_now: str = ""
    """What was committed between the question for the newest commit and that for its files."""
    meanwhile: str = ""
    """What is committed while the first file is fetched."""
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Files that were fetched, each with its commit."""

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of whoever is to ask it."""
        return {"HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}


@contextmanager
def stub_hub() -> Iterator[StubHub]:
    """Answers until the context ends."""
    hub = StubHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub() -> Iterator[StubHub]:
    """An empty hub."""
    with stub_hub() as found:
        yield found


class _Handler(BaseHTTPRequestHandler):
    hub: StubHub

    def do_GET(self) -> None:
        dataset = f"/api/{self.hub.kind}/{self.hub.dataset}"
        folder = "/datasets" if self.hub.kind == "datasets" else ""
        file = f"{folder}/{self.hub.dataset}/resolve/"
        path = self.path.partition("?")[0]
        if path == f"/api/models/{MODEL}":
            self._answer(200, b'{"id": "some/model"}')
        elif self.hub.newest and path == dataset:
            self._tell(self.hub.newest)
        elif self.hub.newest and path == f"{dataset}/revision/main":
            self._tell(self.hub.by_now or self.hub.newest)
        elif path.startswith(f"{dataset}/tree/"):
            self._list(path.removeprefix(f"{dataset}/tree/"))
        elif path.startswith(file):
            self._send(*path.removeprefix(file).split("/", 1))
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _tell(self, commit: str) -> None:
        self._answer(200, json.dumps({"id": self.hub.dataset, "sha": commit}).encode())

    def _list(self, commit: str) -> None:
        files = [
            {"type": "file", "path": name, "size": len(body), "oid": sha1(body).hexdigest()}
            for name, body in self.hub.commits[commit].items()
        ]
        self._answer(200, json.dumps(files).encode())

    def _send(self, commit: str, name: str) -> None:
        body = self.hub.commits[commit][name]
        about = {"ETag": f'"{sha1(body).hexdigest()}"', "X-Repo-Commit": commit}
        if self.command == "GET":
            self.hub.sent.append((commit, name))
            self.hub.newest = self.hub.meanwhile or self.hub.newest
        self._answer(200, body, about)

    def _answer(self, status: int, body: bytes, about: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in (headers | dict(about or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""
