"""Public images have digests, and a check names those that have none."""

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.unit.deploy.manifests import compose_files, deployment_of, rendered
from trinity.run.deploy.values import DeploymentValues

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"
INDEX = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:1"}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
KNOWN = (
    "library/postgres:18",
    "library/nats:2.15-alpine",
    "library/python:3.11",
    "grafana/grafana:12",
)
COMPOSE = """\
services:
  database:
    image: postgres:18
  dashboard:
    image: grafana/grafana:12
  buffer:
    image: trinity-buffer:0.1.0
"""
NOMAD = """\
config {
  image        = "nats:2.15-alpine"
}
config {
  image = var.images.buffer
}
"""
MANIFESTS = {
    "a.Dockerfile": "FROM python:3.11 AS build\nFROM python:3.11\nCOPY --from=build /a /a\n",
    "compose.yaml": COMPOSE,
    "k8s/db.yaml": f"containers:\n  - image: postgres:18@sha256:{64 * '0'}\n    name: db\n",
    "nomad/one.nomad.hcl": NOMAD,
}


class Registry(BaseHTTPRequestHandler):
    """Answers as a registry does: first with the address of the tokens, then with the index."""

    def do_GET(self) -> None:
        host = f"http://{self.headers['Host']}"
        if self.path.startswith("/token?service=here&scope=repository"):
            return self._answer(200, b'{"token": "anyone"}')
        if self.headers["Authorization"] != "Bearer anyone":
            challenge = f'Bearer realm="{host}/token",service="here",scope="repository:x:pull"'
            return self._answer(401, b"{}", challenge)
        name = self.path.removeprefix("/v2/").replace("/manifests/", ":")
        return self._answer(200 if name in KNOWN else 404, INDEX)

    def _answer(self, code: int, body: bytes, challenge: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    folder = tmp_path / "deploy"
    for name, text in MANIFESTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def images(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "images.py"), "--folder", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_images_without_a_digest_are_named_with_their_lines(manifests: Path) -> None:
    done = images(manifests)
    assert done.returncode == 1
    named = re.findall(r"deploy/(\S+): `(\S+)` has no digest", done.stdout)
    assert named == [
        ("a.Dockerfile:1", "python:3.11"),
        ("a.Dockerfile:2", "python:3.11"),
        ("compose.yaml:3", "postgres:18"),
        ("compose.yaml:5", "grafana/grafana:12"),
        ("nomad/one.nomad.hcl:2", "nats:2.15-alpine"),
    ]


def test_digests_are_those_of_what_the_registry_answers(manifests: Path, registry: str) -> None:
    done = images(manifests, "--pin", "--hub", registry)
    assert done.returncode == 0, done.stderr
    for name, before in MANIFESTS.items():
        after = (manifests / name).read_text()
        assert after.replace(f"@{DIGEST}", "") == re.sub(r"@sha256:0+", "", before)
    assert (manifests / "k8s/db.yaml").read_text().count(f"postgres:18@{DIGEST}\n") == 1
    assert images(manifests).returncode == 0 and images(manifests).stdout == ""


def test_nothing_is_written_if_one_image_is_unknown(manifests: Path, registry: str) -> None:
    (manifests / "compose.yaml").write_text("image: unknown/image:1\n")
    done = images(manifests, "--pin", "--hub", registry)
    assert done.returncode == 1 and "`unknown/image:1`" in done.stderr and "404" in done.stderr
    assert (manifests / "a.Dockerfile").read_text() == MANIFESTS["a.Dockerfile"]


def test_a_registry_out_of_reach_is_named(manifests: Path) -> None:
    done = images(manifests, "--pin", "--hub", "http://127.0.0.1:1")
    assert done.returncode == 1 and "http://127.0.0.1:1 does not give it" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_public_image_of_the_manifests_is_seen(tmp_path: Path) -> None:
    """With a digest on each by other means, none is left to name."""
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    text = "".join(
        path.read_text() for path in folder.rglob("*") if path.suffix in {".yaml", ".hcl"}
    )
    public = re.findall(r"image\"?\s*[:=]\s*\"?([\w./-]+:[\w.-]+)", text)
    told = images(folder).stdout
    for image in {name for name in public if not name.startswith("trinity-")}:
        assert f"`{image}`" in told or f"{image}@sha256:" in text
    for path in folder.rglob("*"):
        if path.suffix in {".yaml", ".hcl", ".Dockerfile"}:
            pinned = re.sub(
                r"(FROM |image: |image += \")(?!trinity-)([\w./-]+:[\w.-]+)",
                r"\1\2@" + DIGEST,
                path.read_text(),
            )
            path.write_text(pinned)
    assert images(folder).returncode == 0


OWN = {
    name: f"sha256:{digit * 64}"
    for name, digit in zip(
        ("buffer", "explorer", "studio", "synchronizer", "trainer"), "abcde", strict=True
    )
}


def test_own_images_are_rendered_by_their_digests(tmp_path: Path) -> None:
    values = DeploymentValues(registry="registry.example.org", digests=OWN)
    deployment = dataclasses.replace(deployment_of("addition"), values=values)
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "compose"))
    used = {service["image"] for service in override["services"].values() if "image" in service}
    of_services = set(OWN.values()) - {OWN["studio"]}  # compose is told Studio's by a variable
    assert {image.partition("@")[2] for image in used} == of_services
    nomad = rendered(deployment, "nomad", tmp_path / "nomad") / "experiment.vars.json"
    for name, image in json.loads(nomad.read_text())["images"].items():
        assert re.fullmatch(rf"registry.example.org/trinity-{name}:0.1.0(-\w+)?@{OWN[name]}", image)
    k8s = rendered(deployment, "k8s", tmp_path / "k8s") / "kustomization.yaml"
    for image in yaml.safe_load(k8s.read_text())["images"]:
        assert image["digest"] == OWN[image["name"].removeprefix("trinity-")]
        assert "newTag" not in image  # kustomize takes one of them
