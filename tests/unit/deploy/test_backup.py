"""Backups in a cluster and in compose: their settings, secrets, programs and what they reach."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.kustomized import Object, named, with_component
from tests.unit.deploy.manifests import SHIPPED
from trinity.run.deploy.accounts import AccountSettings
from trinity.run.deploy.backup import BackupSettings, first_error, libpq_environment
from trinity.run.deploy.restore import RestoreSettings
from trinity.run.deploy.secret_folder import NAMES
from trinity.runtime.settings import ServiceSettings

COMPONENT = SHIPPED / "k8s" / "components" / "backup"
SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "backup": BackupSettings,
    "restore": RestoreSettings,
}
SECRETS = {"backup": "backup-secrets", "restore": "admin-secrets"}
"""A backup needs a role that reads; a restore makes tables for others."""


@pytest.fixture(scope="module", params=["one-node", "cluster"])
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    overlay = SHIPPED / "k8s" / "overlays" / request.param
    return with_component(COMPONENT, overlay, tmp_path_factory.mktemp("backup"))


def check_variables(
    given: Mapping[str, str], settings: type[ServiceSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are all that the settings need, and no others."""
    for name, value in given.items():
        if name.endswith("_FILE"):
            name, value = name.removesuffix("_FILE"), "postgresql://backup:x@127.0.0.1:1/trinity"
        monkeypatch.setenv(name, value)
    settings.from_environment()


@pytest.mark.parametrize("job", SETTINGS)
def test_jobs_of_a_cluster_have_their_settings_and_one_secret(
    objects: list[Object], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cron = named(objects, "CronJob", job)["spec"]
    assert (cron.get("suspend", False), cron["concurrencyPolicy"]) == (job == "restore", "Forbid")
    pod = cron["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["python", "-P", "-m", f"trinity.run.deploy.{job}"]
    check_variables(
        {one["name"]: one["value"] for one in container["env"]}, SETTINGS[job], monkeypatch
    )
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == ["synchronizer-tls", SECRETS[job]]
    assert SECRETS[job].removesuffix("-secrets") in NAMES
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_accounts_job_makes_the_role(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = named(objects, "Job", "migrate")["spec"]["template"]["spec"]
    accounts = pod["initContainers"][0]
    given = {one["name"]: one["value"] for one in accounts["env"]}
    assert given["TRINITY_ACCOUNTS_BACKUP_DSN_FILE"].startswith("/etc/trinity/secrets/backup/")
    assert len(accounts["volumeMounts"]) == 6
    check_variables(given, AccountSettings, monkeypatch)


@pytest.mark.parametrize("job", SETTINGS)
def test_jobs_of_compose_have_their_settings(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compose: dict[str, Any] = yaml.safe_load((SHIPPED / "compose.yaml").read_text())
    service = compose["services"][job]
    assert service["entrypoint"][-1] == f"trinity.run.deploy.{job}"
    check_variables(service["environment"], SETTINGS[job], monkeypatch)


def test_the_image_has_the_programs() -> None:
    lock = (Path(__file__).parents[3] / "requirements" / "studio.lock").read_text()
    assert "\npixeltable-pgserver==" in lock


def test_a_password_is_no_argument_of_a_program() -> None:
    address = "postgresql://backup:secret@db:5432/trinity?sslmode=verify-full&sslrootcert=/ca.crt"
    given = libpq_environment(address)
    assert given["PGPASSWORD"] == "secret"
    assert (given["PGHOST"], given["PGUSER"], given["PGDATABASE"]) == ("db", "backup", "trinity")
    assert (given["PGSSLMODE"], given["PGSSLROOTCERT"]) == ("verify-full", "/ca.crt")


def test_the_first_error_is_told_without_its_program() -> None:
    said = "psql:<stdin>:7: ERROR:  its table buffer.stage has rows\nCONTEXT: a block"
    assert first_error(said) == "its table buffer.stage has rows"
    assert first_error("pg_dump: error: server version mismatch\nmore") == "server version mismatch"
