"""`trinity certs`: a development authority, and a folder of credentials for each part."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from trinity.errors import UserError
from trinity.run.output import write_errors
from trinity.runtime.owned_places import claim_folder
from trinity.runtime.security.authorization import EVERY_TENANT, ROLE_SCOPES
from trinity.runtime.security.certificates import (
    DEFAULT_TENANT,
    PARTS,
    TENANT_CODE_ROLES,
    CredentialIssuer,
    CredentialRole,
    parts_of,
)
from trinity.runtime.security.credentials import VARIABLE

FolderArgument = Annotated[Path, typer.Argument(help="Directory of the authority and the parts.")]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="PART=NAME: a further name or address of a part; may be repeated."),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="Tenant of the explorer and the trainer, else `default`; of --name any ('*') else.",
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Make one further folder of this name only.")
]
USUAL_ROLE = "operator"
RoleOption = Annotated[
    str, typer.Option("--role", help=f"Role of the part of --name, else {USUAL_ROLE}.")
]
MAX_DAYS = 36_500
DaysOption = Annotated[
    int,
    typer.Option(
        "--days", min=1, max=MAX_DAYS, help="Days for which certificates and tokens are valid."
    ),
]

ForceOption = Annotated[
    bool, typer.Option("--force", help="Allow tokens that last longer than a year.")
]


def certs(
    folder: FolderArgument,
    host: HostOption = None,
    tenant: TenantOption = None,
    name: NameOption = None,
    role: RoleOption = "",
    days: DaysOption = 30,
    force: ForceOption = False,
) -> None:
    """Make or renew certificates and tokens, one folder for each service or person.

    An existing authority is kept, and what it has signed stays valid until it expires.
    """
    lifetime = timedelta(days=days)
    if role and name is None:
        raise UserError(f"--role {role} is the role of a further part: name it with --name")
    hosts = _hosts(host or [], PARTS if name is None else [name])
    parts = parts_of(hosts, tenant or DEFAULT_TENANT)
    if name is not None:
        role = role or USUAL_ROLE
        if role not in ROLE_SCOPES:
            raise UserError(f"--role: there is no {role!r}; there are {', '.join(ROLE_SCOPES)}")
        parts = (_further(name, role, tenant, hosts.get(name, ())),)
    with write_errors(folder, "give a separate folder as FOLDER"):
        claim_folder(folder, "give a separate folder as FOLDER")
        issuer = CredentialIssuer(folder)
        for part in parts:
            print(f"{part.name}: {VARIABLE}={issuer.issue(part, lifetime, force=force).resolve()}")
    print(f"keep {issuer.signing_key.parent} apart: its owner can let anyone in")


def _further(name: str, role: str, tenant: str | None, hosts: Sequence[str]) -> CredentialRole:
    usual = DEFAULT_TENANT if role in TENANT_CODE_ROLES else EVERY_TENANT
    return CredentialRole(name=name, hosts=hosts, tenant=tenant or usual, scopes=ROLE_SCOPES[role])


def _hosts(options: list[str], parts: Collection[str]) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for option in options:
        part, equals, host = option.partition("=")
        if not equals or not host or part not in parts:
            known = ", ".join(sorted(parts))
            raise UserError(f"--host {option}: write it as PART=NAME, where PART is one of {known}")
        hosts.setdefault(part, []).append(host)
    return hosts
