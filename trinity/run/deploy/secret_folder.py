"""`trinity deploy secrets`: the passwords of a deployment, in separate files for each service.

secrets/
  admin/password, dsn               the database's first user, for the accounts job alone
  buffer/postgres-dsn, nats-url     synchronizer/postgres-dsn     explorer/nats-url
  backup/postgres-dsn               a role that reads both schemas
  nats/users.conf                   included by the broker's configuration
  grafana/password                  for the dashboard's user admin
  kustomization.yaml                the same as Kubernetes Secrets: kubectl apply -k secrets
  nomad/                            the same as Nomad variables: nomad var put @file
"""

import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from trinity.errors import UserError
from trinity.runtime.owned_places import claim_folder
from trinity.runtime.security.broker import buffer_user, explorer_user, users_block
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles

NAMES = {
    "admin": ("dsn", "password"),
    "backup": ("postgres-dsn",),
    "buffer": ("nats-url", "postgres-dsn"),
    "explorer": ("nats-url",),
    "grafana": ("password",),
    "nats": ("users.conf",),
    "synchronizer": ("postgres-dsn",),
}
NOMAD: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "one-node": {
        "node/postgres": ("admin/password",),
        "node/nats": ("nats/users.conf",),
        "node/accounts": ("admin/dsn", "buffer/postgres-dsn", "synchronizer/postgres-dsn"),
        "node/migrate-synchronizer": ("synchronizer/postgres-dsn",),
        "node/migrate-buffer": ("buffer/postgres-dsn",),
        "node/synchronizer": ("synchronizer/postgres-dsn",),
        "node/buffer": ("buffer/postgres-dsn", "buffer/nats-url"),
        "node/explorer": ("explorer/nats-url",),
    },
    "cluster": {
        "synchronizer/migrate-synchronizer": ("synchronizer/postgres-dsn",),
        "synchronizer/synchronizer": ("synchronizer/postgres-dsn",),
        "buffer/migrate-buffer": ("buffer/postgres-dsn",),
        "buffer/buffer": ("buffer/postgres-dsn", "buffer/nats-url"),
        "explorer/explorer": ("explorer/nats-url",),
    },
}
"""The secrets of each task of deploy/nomad; a task can read only its own variable."""
PASSWORDS = ".passwords"
AUTHORITY = "/etc/trinity/tls/ca.crt"
"""The container's path of the certificate that authenticates the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddresses:
    """Addresses of the database and the broker, host:port as the services see them.

    Beyond loopback they use TLS.
    """

    postgres: str
    nats: str


def write_secrets(folder: Path, places: ServerAddresses) -> None:
    """Writes every file; existing passwords are kept.

    Raises: UserError when a place is not host:port.
    """
    for option, place in (("--postgres", places.postgres), ("--nats", places.nats)):
        _check_place(option, place)
    claim_folder(folder, "give a separate folder as FOLDER")
    made = SecretFiles(folder / PASSWORDS)
    contents = {
        "admin/password": made.password("postgres-admin"),
        "admin/dsn": _dsn(made, SUPERUSER, places.postgres, "postgres"),
        "backup/postgres-dsn": _dsn(made, "backup", places.postgres, DATABASE),
        "buffer/postgres-dsn": _dsn(made, "buffer", places.postgres, DATABASE),
        "buffer/nats-url": _nats_url(made, "buffer", places.nats),
        "synchronizer/postgres-dsn": _dsn(made, "synchronizer", places.postgres, DATABASE),
        "explorer/nats-url": _nats_url(made, "explorer", places.nats),
        "grafana/password": made.password("grafana"),
        "nats/users.conf": users_block(
            [
                buffer_user(made.password("nats-buffer")),
                explorer_user(made.password("nats-explorer")),
            ]
        ),
    }
    for name, content in contents.items():
        part, _, file = name.partition("/")
        SecretFiles(folder / part).write_secret(file, content)
    SecretFiles(folder).write_secret("kustomization.yaml", yaml.safe_dump(_kustomization()))
    for job, tasks in NOMAD.items():
        for task, names in tasks.items():
            specification = {
                "Path": f"nomad/jobs/trinity/{task}",
                "Items": {nomad_name(name): contents[name] for name in names},
            }
            file = f"{task.replace('/', '-')}.json"
            SecretFiles(folder / "nomad" / job).write_secret(file, json.dumps(specification))


def nomad_name(file: str) -> str:
    """Returns the name of a file as an item of a Nomad variable."""
    return re.sub(r"\W", "_", file.removesuffix(".conf"))


def _dsn(made: SecretFiles, role: str, place: str, database: str) -> str:
    checked = "" if _is_loopback(place) else f"?sslmode=verify-full&sslrootcert={AUTHORITY}"
    return f"postgresql://{role}:{made.password(f'postgres-{role}')}@{place}/{database}{checked}"


def _nats_url(made: SecretFiles, user: str, place: str) -> str:
    scheme = "nats" if _is_loopback(place) else "tls"
    return f"{scheme}://{user}:{made.password(f'nats-{user}')}@{place}"


def _is_loopback(place: str) -> bool:
    return place.startswith(("127.", "localhost:", "[::1]:"))


def _kustomization() -> dict[str, object]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "trinity",
        "generatorOptions": {"disableNameSuffixHash": True},
        "secretGenerator": [
            {"name": f"{part}-secrets", "files": [f"{part}/{name}" for name in names]}
            for part, names in NAMES.items()
        ],
    }


def _check_place(option: str, place: str) -> None:
    parts = urllib.parse.urlsplit(f"//{place}")
    try:
        is_place = bool(parts.hostname) and parts.port is not None and not parts.path
    except ValueError:
        is_place = False
    if not is_place or "@" in place:
        raise UserError(f"`{option} {place}` is not host:port: give it as the services see it")
