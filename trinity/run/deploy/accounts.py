"""Creates the services' accounts in a database: python -m trinity.run.deploy.accounts

Creates the database, a role per service with the password of the service's own address, and the
schema that it owns; existing objects stay. Run as a job, before the migrations.
"""

import asyncio
import sys
import urllib.parse
from collections.abc import Mapping

import psycopg
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.errors import RunFailed, UserError
from trinity.run.local.postgres import SCHEMA_OWNERS, set_up_roles, set_up_schemas
from trinity.runtime.postgres import libpq_dsn, place, wait_until_up
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.security.secret_files import DATABASE
from trinity.runtime.settings import ServiceSettings

READER = "backup"


class AccountSettings(ServiceSettings):
    """Settings from the `TRINITY_ACCOUNTS_*` variables; addresses may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_ACCOUNTS_")

    admin_dsn: SecretStr
    """The address with a user that may create roles: postgresql://user:password@host/postgres."""
    buffer_dsn: SecretStr
    """The address that the buffer is given."""
    synchronizer_dsn: SecretStr
    """The address that the synchronizer is given."""
    backup_dsn: SecretStr | None = None
    """The address that the backup job is given; without it there is no such role."""
    connect_seconds: float = Field(default=60.0, gt=0)
    """Time to wait for the database."""


async def set_up(settings: AccountSettings, stop: asyncio.Event) -> None:
    """Creates missing roles, database and schemas, and sets the passwords."""
    dsns = {
        "buffer": settings.buffer_dsn,
        "synchronizer": settings.synchronizer_dsn,
        READER: settings.backup_dsn,
    }
    passwords = passwords_of({role: dsn.get_secret_value() for role, dsn in dsns.items() if dsn})
    admin = settings.admin_dsn.get_secret_value()
    if not await wait_until_up(admin, settings.connect_seconds, stop):
        return
    try:
        async with await psycopg.AsyncConnection.connect(
            libpq_dsn(admin), autocommit=True
        ) as connection:
            await set_up_roles(connection, passwords)
        async with await psycopg.AsyncConnection.connect(
            libpq_dsn(urllib.parse.urlsplit(admin)._replace(path=f"/{DATABASE}").geturl()),
            autocommit=True,
        ) as connection:
            await set_up_schemas(connection)
            if READER in passwords:
                await connection.execute(
                    f"GRANT pg_read_all_data TO {READER}; "
                    f"GRANT CONNECT ON DATABASE {DATABASE} TO {READER}"
                )
    except psycopg.errors.InsufficientPrivilege as error:
        raise UserError(
            f"the user of TRINITY_ACCOUNTS_ADMIN_DSN may not set up {place(admin)} "
            f"({str(error).splitlines()[0]}): give one that may create roles and databases"
        ) from error
    except psycopg.OperationalError as error:
        raise RunFailed(f"{place(admin)}: {str(error).splitlines()[0]}") from error


def passwords_of(dsns: Mapping[str, str]) -> dict[str, str]:
    """Returns each role's password, which stands in the address of the service of that name.

    Raises: UserError when an address is not that of the service's own role.
    """
    assert set(dsns) - {READER} == set(SCHEMA_OWNERS)
    passwords = {}
    for role, dsn in dsns.items():
        variable = f"TRINITY_ACCOUNTS_{role.upper()}_DSN"
        parts = urllib.parse.urlsplit(dsn)
        if parts.username != role or parts.path != f"/{DATABASE}":
            raise UserError(
                f"{variable} is not of the form postgresql://{role}:...@host:port/{DATABASE}: "
                "role and database have these names"
            )
        if not parts.password:
            raise UserError(f"{variable} holds no password: give {role} one")
        passwords[role] = urllib.parse.unquote(parts.password)
    return passwords


def main() -> int:
    """Runs the job; its entry point."""
    return run_service("accounts", AccountSettings, set_up)


if __name__ == "__main__":
    sys.exit(main())
