"""`trinity certs`: a development authority, and a folder of credentials for each part."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.output import write_errors
from trinity.errors import UserError
from trinity.security.authorization import EVERY_TENANT, ROLE_SCOPES
from trinity.security.certificates import PARTS, CredentialIssuer, CredentialRole, parts_of
from trinity.security.credentials import VARIABLE

FolderArgument = Annotated[Path, typer.Argument(help="Directory of the authority and the parts.")]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="PART=NAME: a further name or address of a part; may be repeated."),
]
TenantOption = Annotated[
    str, typer.Option("--tenant", help="Tenant of the explorer and the trainer; '*' is any tenant.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Make one further folder of this name only.")
]
RoleOption = Annotated[str, typer.Option("--role", help="Role of the part of --name.")]
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
    tenant: TenantOption = EVERY_TENANT,
    name: NameOption = None,
    role: RoleOption = "operator",
    days: DaysOption = 30,
    force: ForceOption = False,
) -> None:
    """Make or renew certificates and tokens, one folder for each service or person.

    An existing authority is kept, and what it has signed stays valid until it expires.
    """
    lifetime = timedelta(days=days)
    hosts = _hosts(host or [], {*PARTS, *([name] if name else [])})
    parts = parts_of(hosts, tenant)
    if name is not None:
        if role not in ROLE_SCOPES:
            raise UserError(f"--role: there is no {role!r}; there are {', '.join(ROLE_SCOPES)}")
        further = hosts.get(name, ())
        parts = (CredentialRole(name=name, hosts=further, tenant=tenant, scopes=ROLE_SCOPES[role]),)
    with write_errors(folder, "give a folder of its own as FOLDER"):
        issuer = CredentialIssuer(folder)
        for part in parts:
            print(f"{part.name}: {VARIABLE}={issuer.issue(part, lifetime, force=force).resolve()}")
    print(f"keep {issuer.signing_key.parent} apart: its owner can let anyone in")


def _hosts(options: list[str], parts: set[str]) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for option in options:
        part, equals, host = option.partition("=")
        if not equals or not host or part not in parts:
            known = ", ".join(sorted(parts))
            raise UserError(f"--host {option}: write it as PART=NAME, where PART is one of {known}")
        hosts.setdefault(part, []).append(host)
    return hosts
