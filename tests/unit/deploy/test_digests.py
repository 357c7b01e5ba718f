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
from typer.testing import CliRunner, Result

from tests.unit.deploy.manifests import compose_files, deployment_of, rendered
from tests.unit.subtests import as_subtests
from trinity.cli.main import make_app
from trinity.errors import UserError
from trinity.run.deploy.values import DeploymentValues, read_values

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"
INDEX = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:1"}]}).encode()
LOGIN = "b3VyczpvdXJz"
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
        if self.path.startswith("/login?scope=x") and self.headers["Authorization"]:
            return self._answer(200, b'{"token": "ours"}')
        if self.path.startswith("/token?service=here&scope=repository"):
            return self._answer(200, b'{"token": "anyone"}')
        if self.headers["Authorization"] != "Bearer anyone":
            challenge = f'Bearer realm="{host}/token",service="here",scope="repository:x:pull"'
            return self._answer(401, b"{}", challenge)
        name = self.path.removeprefix("/v2/").replace("/manifests/", ":")
        return self._answer(200 if name in KNOWN else 404, INDEX)

    def do_HEAD(self) -> None:
        """Names the digest of a pushed image, after a login."""
        if self.headers["Authorization"] not in ("Bearer ours", f"Basic {LOGIN}"):
            challenge = f'Bearer realm="http://{self.headers["Host"]}/login",scope="x:pull"'
            return self._answer(401, b"", challenge if "token" in self.path else "Basic realm=x")
        found = re.fullmatch(r"/v2/(?:token/)?trinity-(\w+)/manifests/t1(-cpu)?", self.path)
        is_wanted = "application/vnd.oci.image.manifest.v1+json" in self.headers["Accept"]
        pushed = found is not None and is_wanted and found[1] in OWN
        self.named = OWN[found[1]] if found is not None and pushed else ""
        return self._answer(200 if pushed else 404, b"")

    def _answer(self, code: int, body: bytes, challenge: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        if named := getattr(self, "named", ""):
            self.send_header("Docker-Content-Digest", named)
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
    assert "Traceback" not in done.stderr and "urlopen" not in done.stderr


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


def pin(folder: Path) -> Result:
    command = ["deploy", "pin", str(folder)]
    return CliRunner().invoke(make_app(command), command)


@pytest.fixture
def pushed(tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rendering whose images are at a registry that asks for a login, which Docker keeps."""
    host = registry.removeprefix("http://")
    folder = rendered(deployment_of("addition"), "k8s", tmp_path / "out")
    (folder / "values.yaml").write_text(f"registry: {host}\ntag: t1  # ours\n")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": LOGIN}}}))
    return folder


@pytest.mark.parametrize("path", ["", "/token"], ids=["basic", "by a token"])
def test_the_digests_of_own_images_are_those_that_the_registry_names(
    pushed: Path, path: str
) -> None:
    values = pushed / "values.yaml"
    values.write_text(values.read_text().replace("\ntag", f"{path}\ntag"))
    done = pin(pushed)
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    services = {name: OWN[name] for name in OWN if name != "studio"}
    assert read_values(pushed).digests == services
    assert "tag: t1  # ours" in values.read_text()
    deployment = dataclasses.replace(deployment_of("addition"), values=read_values(pushed))
    again = rendered(deployment, "k8s", pushed) / "kustomization.yaml"
    found = {
        image["name"]: image["digest"] for image in yaml.safe_load(again.read_text())["images"]
    }
    assert found == {f"trinity-{name}": digest for name, digest in services.items()}


@as_subtests(
    ("values", "said"),
    [
        ("tag: t2", r"404.*push the images"),
        ("registry: 127.0.0.1:1", r"Connection refused.*correct `registry`"),
    ],
)
def test_where_a_registry_names_no_digest_none_is_written(
    pushed: Path, values: str, said: str
) -> None:
    text = (pushed / "values.yaml").read_text()
    key = values.partition(":")[0]
    (pushed / "values.yaml").write_text(re.sub(rf"^{key}:.*$", values, text, flags=re.MULTILINE))
    done = pin(pushed)
    assert isinstance(done.exception, UserError) and re.search(said, str(done.exception))
    assert read_values(pushed).digests == {}


def test_without_a_login_the_registry_refuses(pushed: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").unlink()
    done = pin(pushed)
    assert "401" in str(done.exception) and "`docker login`" in str(done.exception)
