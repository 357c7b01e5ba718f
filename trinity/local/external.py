"""A broker and a database that already run, named by the user instead of started by us."""

import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nats
import nats.errors
import nats.js.errors

from trinity.errors import UserError
from trinity.security.broker import client_options
from trinity.security.folder import VARIABLE as SECURITY_DIR

_NATS_URL = "TRINITY_NATS_URL"
_POSTGRES_DSN = "TRINITY_POSTGRES_DSN"
SECRET_VARIABLES = frozenset(
    name + suffix for name in (_NATS_URL, _POSTGRES_DSN) for suffix in ("", "_FILE")
) | {SECURITY_DIR}
_ANSWER_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Externals:
    """Addresses with passwords; None for what the launcher starts itself."""

    nats_url: str | None = field(default=None, repr=False)
    postgres_dsn: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Externals":
        return cls(_given(_NATS_URL, environment), _given(_POSTGRES_DSN, environment))

    async def check(self) -> None:
        """Checks that the named servers answer.

        Raises: UserError naming the address, without its password.
        """
        if self.nats_url is not None:
            await _check_nats(self.nats_url)
        if self.postgres_dsn is not None:
            await _check_postgres(self.postgres_dsn)


def without_password(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _given(name: str, environment: Mapping[str, str]) -> str | None:
    value, path = environment.get(name), environment.get(f"{name}_FILE")
    if value and path:
        raise UserError(f"Both {name} and {name}_FILE are set: unset one of them")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise UserError(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return value or None


async def _check_nats(url: str) -> None:
    async def ignore(_: Exception) -> None:
        """Does nothing: the failed attempt raises; the client would log it as well."""

    try:
        client = await nats.connect(
            url,
            allow_reconnect=False,
            connect_timeout=_ANSWER_SECONDS,
            max_reconnect_attempts=1,
            error_cb=ignore,
            **client_options(url),
        )
        await client.jetstream().account_info()
        await client.close()
    except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
        raise UserError(
            f"The broker at {without_password(url)} does not answer with JetStream: start it, or "
            f"correct or unset {_NATS_URL} ({error or type(error).__name__})"
        ) from error


async def _check_postgres(dsn: str) -> None:
    from trinity.postgres import wait_until_up  # imported late: SQLAlchemy takes half a second

    try:
        await wait_until_up(dsn, _ANSWER_SECONDS)
    except UserError as error:
        raise UserError(f"{_POSTGRES_DSN}: {error}") from error
