"""The shipped manifests against the code: variables, secrets, users, ports."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from services.buffer.settings import BufferSettings
from services.explorer.settings import ExplorerSettings
from services.synchronizer.settings import SynchronizerSettings
from services.trainer.settings import TrainerSettings
from tests.unit.deploy.manifests import SERVICES, SHIPPED, compose_files, deployment_of, pods
from tests.unit.deploy.manifests import rendered as render
from tests.unit.subtests import as_subtests
from trinity.run.deploy.accounts import AccountSettings
from trinity.run.deploy.backup import BackupSettings
from trinity.run.deploy.render import Target
from trinity.run.deploy.restore import RestoreSettings
from trinity.run.deploy.secret_folder import (
    NAMES,
    NOMAD,
    ServerAddresses,
    nomad_name,
    write_secrets,
)
from trinity.runtime.settings import FILE_SUFFIX, ServiceSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "ACCOUNTS": AccountSettings,
    "BACKUP": BackupSettings,
    "BUFFER": BufferSettings,
    "EXPLORER": ExplorerSettings,
    "RESTORE": RestoreSettings,
    "SYNCHRONIZER": SynchronizerSettings,
    "TRAINER": TrainerSettings,
}
OTHERS = {
    *("TRINITY_GID", "TRINITY_PLUGIN_DIRS", "TRINITY_SECURITY_DIR", "TRINITY_UID"),
    *("TRINITY_BACKUPS", "TRINITY_STUDIO_IMAGE", "TRINITY_STUDIO_TLS"),  # of compose alone
}


def _variables(text: str) -> set[str]:
    return set(re.findall(r"\bTRINITY_[A-Z_]+\b", text.replace("\\n", " "))) - OTHERS


def _shipped() -> Iterator[Path]:
    yield SHIPPED / "compose.yaml"
    yield SHIPPED / "compose.studio.yaml"
    yield from sorted((SHIPPED / "k8s").rglob("*.yaml"))
    yield from sorted((SHIPPED / "nomad").glob("*.hcl"))


@as_subtests("file", list(_shipped()))
def test_every_variable_is_one_that_its_service_takes(file: Path) -> None:
    """A service refuses a variable that it does not know."""
    for variable in _variables(file.read_text()):
        _, service, field = variable.split("_", 2)
        known = SETTINGS[service].model_fields
        assert field.removesuffix(FILE_SUFFIX).lower() in known, variable


@pytest.mark.parametrize("target", ["compose", "k8s", "nomad"])
def test_what_each_service_cannot_do_without_is_given(target: Target) -> None:
    files = {
        "compose": ["compose.yaml"],
        "k8s": [f"k8s/base/{name}.yaml" for name in SERVICES],
        "nomad": ["nomad/cluster.nomad.hcl"],
    }
    given = _variables("".join((SHIPPED / name).read_text() for name in files[target]))
    for service in SERVICES:
        for name, field in SETTINGS[service.upper()].model_fields.items():
            variable = f"TRINITY_{service.upper()}_{name.upper()}"
            if field.is_required():
                assert given & {variable, variable + FILE_SUFFIX}, variable


def test_every_secret_of_compose_is_written(tmp_path: Path) -> None:
    write_secrets(
        tmp_path / "secrets", ServerAddresses(postgres="127.0.0.1:5432", nats="127.0.0.1:4222")
    )
    compose = yaml.safe_load((SHIPPED / "compose.yaml").read_text())
    for secret in compose["secrets"].values():
        file = tmp_path / secret["file"]
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text()


def test_secrets_stay_when_they_are_written_again(tmp_path: Path) -> None:
    write_secrets(tmp_path, ServerAddresses(postgres="127.0.0.1:5432", nats="127.0.0.1:4222"))
    before = (tmp_path / "buffer" / "postgres-dsn").read_text()
    write_secrets(tmp_path, ServerAddresses(postgres="127.0.0.1:5433", nats="127.0.0.1:4222"))
    after = (tmp_path / "buffer" / "postgres-dsn").read_text()
    assert after == before.replace("127.0.0.1:5432", "127.0.0.1:5433")


def test_kubernetes_secrets_are_those_that_are_written(tmp_path: Path) -> None:
    write_secrets(tmp_path, ServerAddresses(postgres="127.0.0.1:5432", nats="127.0.0.1:4222"))
    text = "".join(file.read_text() for file in sorted((SHIPPED / "k8s").rglob("*.yaml")))
    wanted = set(re.findall(r"secretName: ([\w-]+-secrets)", text))
    generated = yaml.safe_load((tmp_path / "kustomization.yaml").read_text())["secretGenerator"]
    assert wanted <= {one["name"] for one in generated}
    for one in generated:
        assert all((tmp_path / name).is_file() for name in one["files"])


@pytest.mark.parametrize("job", sorted(NOMAD))
def test_nomad_tasks_ask_for_the_variables_that_are_written(job: str) -> None:
    text = (SHIPPED / "nomad" / f"{job}.nomad.hcl").read_text()
    asked = re.findall(r'nomadVar \\"nomad/jobs/trinity/(\S+)\\" }}{{ \.(\w+) }}', text)
    given = [(task, nomad_name(name)) for task, names in NOMAD[job].items() for name in names]
    assert sorted(asked) == sorted(given)


def test_no_password_reaches_a_rendering(tmp_path: Path) -> None:
    write_secrets(
        tmp_path / "secrets", ServerAddresses(postgres="127.0.0.1:5432", nats="127.0.0.1:4222")
    )
    folder = tmp_path / "secrets" / ".passwords"
    passwords = [file.read_text().strip() for file in folder.iterdir()]
    assert len(passwords) >= len(NAMES)
    targets: tuple[Target, ...] = ("compose", "k8s", "nomad")
    for target in targets:
        out = render(deployment_of("addition"), target, tmp_path / target)
        for file in (path for path in out.rglob("*") if path.is_file()):
            text = file.read_text()
            assert not any(password in text for password in passwords)
            assert not re.search(r"://[^\s:/@]+:[^\s/@$]+@", text), file


def test_pods_are_not_root_and_write_nowhere_else() -> None:
    found = dict(pods(SHIPPED / "k8s" / "base"))
    assert found.keys() == {*SERVICES, "migrate"}
    for spec in found.values():
        assert spec["securityContext"]["runAsNonRoot"]
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_containers_of_compose_are_not_root_and_publish_no_port(tmp_path: Path) -> None:
    base, override = compose_files(render(deployment_of("addition"), "compose", tmp_path / "o"))
    ours = {
        name: service
        for name, service in {
            **base["services"],
            "experiment": override["services"]["experiment"],
        }.items()
        if service["image"].startswith("trinity-")
    }
    assert ours.keys() >= {*SERVICES, "experiment", "accounts"}
    for service in ours.values():
        assert service["user"] == "${TRINITY_UID:-10001}:${TRINITY_GID:-10001}"
        assert service["network_mode"] == "service:network"
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert "ports" not in service


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_its_own_extras_and_no_root(service: str) -> None:
    text = (SHIPPED / "docker" / f"{service}.Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert f'ENTRYPOINT ["python", "-P", "-m", "services.{service}"]' in text
    assert set(re.findall(r"^COPY services/(\w+) ", text, re.MULTILINE)) == {service}
    lock, *_ = re.findall(r"^COPY requirements/(\S+) ", text, re.MULTILINE)
    assert lock.startswith(service)
    assert "COPY requirements/build.lock requirements/install_locked.sh /locks/" in text
