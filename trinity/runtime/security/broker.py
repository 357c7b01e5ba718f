"""Permissions of the broker's users, and how a client authenticates."""

import json
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field

from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_broker
from trinity.runtime.subjects import RUNS_CONSUMER, RUNS_PREFIX, RUNS_STREAM

INBOX = "_INBOX"
ADMIN = "admin"
_USER = re.compile(r"[A-Za-z0-9_-]+")
_STREAM_CALLS = ("CREATE", "UPDATE", "INFO", "DELETE")
_CONSUMER_CALLS = ("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "MSG.NEXT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUser:
    """An account of the broker; without subjects it may do everything."""

    name: str
    password: str = field(repr=False)
    publish: Sequence[str] = ()

    @property
    def config(self) -> str:
        """The account's line of the broker's configuration; it can only hear its own inbox."""
        account = f"user: {json.dumps(self.name)}, password: {json.dumps(self.password)}"
        if not self.publish:
            return f"{{ {account} }}"
        subscribe = json.dumps([f"{inbox_of(self.name)}.>"])
        rights = f"publish: {json.dumps(list(self.publish))}, subscribe: {subscribe}"
        return f"{{ {account}, permissions: {{ {rights} }} }}"


def explorer_user(password: str, tenant: str = "") -> BrokerUser:
    """Returns a user that may publish results, or only one tenant's, but not read."""
    name = f"explorer-{tenant}" if tenant else "explorer"
    subjects = f"{RUNS_PREFIX}.{tenant}.>" if tenant else f"{RUNS_PREFIX}.>"
    return BrokerUser(name=name, password=password, publish=[subjects])


def buffer_user(password: str) -> BrokerUser:
    """Returns a user that may keep and consume the stream of results, but not publish to it."""
    stream = [f"$JS.API.STREAM.{call}.{RUNS_STREAM}" for call in _STREAM_CALLS]
    place = f"{RUNS_STREAM}.{RUNS_CONSUMER}"
    consumer = [f"$JS.API.CONSUMER.{call}.{place}" for call in _CONSUMER_CALLS]
    return BrokerUser(
        name="buffer", password=password, publish=[*stream, *consumer, f"$JS.ACK.{place}.>"]
    )


def authorization_block(users: Sequence[BrokerUser]) -> str:
    """Returns the block of the broker's configuration that admits only these users."""
    return f"authorization {{\n{users_block(users)}}}\n"


def users_block(users: Sequence[BrokerUser]) -> str:
    """Returns the content of that block."""
    lines = "\n".join(f"    {user.config}" for user in users)
    return f"  users: [\n{lines}\n  ]\n"


def tls_block(security: Credentials) -> str:
    """Returns the block that requires client certificates; empty for a plaintext broker."""
    if not security.is_on:
        return ""
    files = {"cert_file": "tls.crt", "key_file": "tls.key", "ca_file": "ca.crt"}
    lines = "".join(
        f"  {option}: {json.dumps(str(security.file(name)), ensure_ascii=False)}\n"
        for option, name in files.items()
    )
    return f"tls {{\n{lines}  verify: true\n}}\n"


def inbox_of(user: str) -> str:
    """Returns the subject prefix for answers to this user, which no other user may subscribe to."""
    return f"{INBOX}.{user}" if _USER.fullmatch(user) else INBOX


def client_options(url: str, security: Credentials | None = None) -> dict[str, object]:
    """Returns the options that a client of the broker needs besides the address.

    Raises: UserError when the broker is beyond loopback and the connection would be plaintext.
    """
    security = security or Credentials.from_environment()
    refuse_plain_broker(url, security.is_on)
    parts = urllib.parse.urlsplit(url.partition(",")[0])
    options: dict[str, object] = {"inbox_prefix": inbox_of(parts.username or "")}
    if parts.scheme == "tls":
        options["tls"] = security.ssl_context()
    return options
