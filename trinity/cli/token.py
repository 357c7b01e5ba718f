"""`trinity token`: a token for a person or a program, signed with the authority's key."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from trinity.errors import UserError
from trinity.run.output import write_errors
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.secret_files import write_private
from trinity.runtime.security.tokens import issue_token

KeyOption = Annotated[
    Path,
    typer.Option("--signing-key", help="token-signing.key of `trinity certs`.", show_default=False),
]
SubjectOption = Annotated[
    str, typer.Option("--subject", help="Owner, as shown in the audit log.", show_default=False)
]
TenantOption = Annotated[
    str, typer.Option("--tenant", help="Tenant of the data; '*' is any tenant.")
]
ScopeOption = Annotated[
    list[Scope], typer.Option("--scope", help="What it allows; may be repeated.")
]
HoursOption = Annotated[
    float, typer.Option("--hours", min=0.01, help="Hours for which it is valid.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Allow a token that lasts longer than a year.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write, readable by its owner only.")
]

TOKEN = re.compile(rb"eyJ[\w-]*\.[\w-]+\.[\w-]+\s*")
"""A JSON Web Token, which may be replaced by a newer one."""


def token(
    signing_key: KeyOption,
    subject: SubjectOption,
    tenant: TenantOption,
    scope: ScopeOption,
    hours: HoursOption = 12.0,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Issue a token and print it, or write it into a file."""
    issued = issue_token(
        signing_key,
        subject=subject,
        tenant=tenant,
        scopes=scope,
        lifetime=_lifetime(hours),
        force=force,
    )
    if output is None:
        print(issued)
        return
    with write_errors(output, "give another `--output`"):
        if output.exists() and not TOKEN.fullmatch(output.read_bytes()):
            raise UserError(f"{output} holds something else than a token: give another `--output`")
        write_private(output, issued)
    print(f"{output}: a token of {subject} for {hours:g} hours")


def _lifetime(hours: float) -> timedelta:
    try:
        return timedelta(hours=hours)
    except (OverflowError, ValueError) as error:
        raise UserError(f"--hours: {hours} is no number of hours that a token can last") from error
