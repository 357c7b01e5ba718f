"""`trinity push-to-hub`: the best version goes to the hub with a card that says how it was made."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from huggingface_hub import constants

from tests.unit.cli.test_config_diff import written
from tests.unit.progress.builders import empty_view, evaluated
from tests.unit.weights.test_whole import FILES, write_version
from trinity.cli.push_to_hub import push_to_hub
from trinity.config.check import check_file
from trinity.errors import RunFailed, UserError
from trinity.run.launch.resume import store_plan
from trinity.run.progress.summary import summarize, write_summary
from trinity.weights.manifest import ManifestHead, seal
from trinity.weights.stored import model_lines

REPOSITORY = "me/adder"


@dataclass(slots=True)
class Hub:
    """The files and the message that a hub on loopback received."""

    address: str = ""
    created: dict[str, object] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    message: str = ""
    refuses: bool = False


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_POST(self) -> None:
        body = self._body()
        if self.hub.refuses:
            self._answer({"error": "no write access"}, 403)
        elif self.path == "/api/repos/create":
            self.hub.created = json.loads(body)
            self._answer({"url": f"{self.hub.address}/{REPOSITORY}"})
        elif self.path.startswith(f"/api/models/{REPOSITORY}/preupload/"):
            paths = [entry["path"] for entry in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [{"path": path, **plain} for path in paths]})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._commit([json.loads(line) for line in body.splitlines()])

    def _body(self) -> bytes:
        if length := self.headers["Content-Length"]:
            return self.rfile.read(int(length))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def _commit(self, lines: list[dict[str, dict[str, str]]]) -> None:
        for line in lines:
            if "content" in line["value"]:
                self.hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            else:
                self.hub.message = line["value"]["summary"]
        self._answer({"commitUrl": f"{self.hub.address}/{REPOSITORY}/commit/1", "commitOid": "1"})

    def _answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keeps the requests out of the tests' output."""


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
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
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as found:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose versions 1 and 2 were evaluated; version 1 was the better one."""
    plan = check_file(written(tmp_path / "started.yaml", name="adder")).plan
    assert plan is not None
    directory = tmp_path / "run"
    directory.mkdir()
    plan = plan.model_copy(update={"job_dir": str(directory)})
    store_plan(plan)
    stage = directory / "stages" / plan.stages[0].name
    for folder, version in (("weights/v00000002-1", 2), ("best", 1)):
        (stage / folder).mkdir(parents=True)
        (stage / folder / "config.json").write_text(f'{{"version": {version}}}')
        head = ManifestHead(
            kind="weights", stage=plan.stages[0].name, step=version, incarnation=1,
            weights_sha256="0" * 64,
        )  # fmt: skip
        seal(stage / folder, head)
    view = empty_view()
    view.stages[plan.stages[0].name] = view.stages.pop("rft")
    for number, (version, accuracy) in enumerate(((0, 0.2), (1, 0.9), (2, 0.8)), 1):
        event = evaluated(number, version, accuracy)
        event.stage = plan.stages[0].name
        view.apply(event)
    summary = summarize(
        view, label=plan.label, state="finished", reason="", starts=1, seconds={"total": 9}
    )
    write_summary(summary, directory / "summary.json")
    return directory


def test_the_best_version_is_published_with_its_card(run: Path, hub: Hub) -> None:
    push_to_hub(REPOSITORY, job_dir=run, private=True)
    assert hub.created["name"] == "adder" and hub.created["visibility"] == "private"
    assert json.loads(hub.files["config.json"]) == {"version": 1}
    assert sorted(hub.files) == ["README.md", "config.json"], "the manifest is ours alone"
    assert hub.message.startswith("Version 1 of stage")
    card = hub.files["README.md"].decode()
    _, head, text = card.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    assert "| accuracy | 0.200 ± 0.010 | 0.900 ± 0.010 | 1000 |" in text
    assert str(run.parent) not in card, "folders of this machine say who trained"


def test_the_newest_version_on_demand(run: Path, hub: Hub) -> None:
    push_to_hub(REPOSITORY, job_dir=run, newest=True)
    assert json.loads(hub.files["config.json"]) == {"version": 2}
    assert "| 0.800 ± 0.010 |" in hub.files["README.md"].decode()


def test_a_newest_version_that_is_a_difference_is_sent_whole(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stage,) = (run / "stages").iterdir()
    for version in (4, 5):
        roots = write_version(stage / "weights", version)
        head = ManifestHead(
            kind="weights", stage=stage.name, step=version, incarnation=1,
            weights_blake3=roots.weights_blake3.hex(),
        )  # fmt: skip
        seal(stage / "weights" / f"v{version}-1", head)
    _, newest, still_newer = model_lines(run, [stage.name])
    assert newest.endswith("v4-1 (version 4)") and "v5-1 (version 5) is a diff" in still_newer
    push_to_hub(REPOSITORY, job_dir=run, newest=True, dry_run=True)
    sent = [line for line in capsys.readouterr().out.splitlines() if line.startswith("would")]
    assert [line.split()[2] for line in sent] == ["lineage.json", *FILES]
    (stage / "weights" / "v4-1" / FILES[1]).unlink()
    with pytest.raises(UserError, match=r"v4-1.*`trinity run` goes on"):
        push_to_hub(REPOSITORY, job_dir=run, newest=True, dry_run=True)


def test_a_dry_run_sends_nothing(run: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    push_to_hub(REPOSITORY, job_dir=run, dry_run=True)
    assert not hub.created and not hub.files
    assert "would send config.json (14 bytes)" in capsys.readouterr().out


def test_a_refusal_of_the_hub_is_one_sentence(run: Path, hub: Hub) -> None:
    hub.refuses = True
    with pytest.raises(RunFailed, match=r"the hub did not take me/adder: .*403"):
        push_to_hub(REPOSITORY, job_dir=run)
    with pytest.raises(UserError, match="is no name of a repository"):
        push_to_hub("a/b/c", job_dir=run)


def test_a_run_without_weights_is_named(run: Path) -> None:
    for manifest in run.rglob("manifest.json"):
        manifest.unlink()
    with pytest.raises(UserError, match="has no weights yet"):
        push_to_hub(REPOSITORY, job_dir=run, dry_run=True)
