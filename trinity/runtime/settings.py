"""Base of every service's settings: typed, frozen, read once from the environment."""

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from trinity.errors import UserError
from trinity.runtime.rpc.quotas import QuotaText, TenantQuota

FILE_SUFFIX = "_FILE"


class ServiceSettings(BaseSettings):
    """Fields all services share. Subclasses add their own and set `env_prefix`.

    Any field may instead be read from a file that holds its value: `<PREFIX><FIELD>_FILE=path`.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    listen: str = "127.0.0.1:0"
    """Address the gRPC server binds, host:port; port 0 picks a free one."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe messages that are logged."""

    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line."""

    metrics_listen: str = ""
    """Address that serves `/metrics` to Prometheus, host:port; empty for none. With certificates it
    takes TLS and a token for all tenants with the scope `read`, without them it is of loopback."""

    drain_seconds: float = Field(default=5.0, ge=0)
    """Time that calls in flight may continue after SIGTERM."""

    tenant_streams: QuotaText = "512"
    """Streams that callers with a token of one tenant may have open at a replica, as in `512` or
    `512, research=2000`. An explorer has two, and each follower of a run one or two."""

    def quota(self, name: str, what: str, *, remedy: str = "end some") -> TenantQuota:
        """Returns the quota that the field of this name holds."""
        return TenantQuota.parse(
            getattr(self, name),
            what=what,
            variable=f"{self._prefix()}{name.upper()}",
            remedy=remedy,
        )

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Reads fields given as files; pydantic-settings supports only directories of secrets."""
        prefix = cls._prefix()
        merged = dict(values)
        for name in cls.model_fields:
            path = os.environ.get(f"{prefix}{name.upper()}{FILE_SUFFIX}")
            if prefix and path:
                merged[name] = _read_secret(Path(path), f"{prefix}{name.upper()}{FILE_SUFFIX}")
        return merged

    @classmethod
    def _prefix(cls) -> str:
        return cls.model_config.get("env_prefix", "")

    @classmethod
    def from_environment(cls) -> Self:
        """Reads the settings.

        Raises: UserError naming each variable that is unknown, missing or out of bounds.
        """
        wrong = cls._unknown_variables()
        settings = None
        try:
            settings = cls()
        except ValidationError as error:
            wrong += _explain(error, cls._prefix())
        if settings is None or wrong:
            raise UserError(f"settings: {'; '.join(wrong)}")
        return settings

    @classmethod
    def _unknown_variables(cls) -> list[str]:
        """Returns errors for misspelt variables, which pydantic-settings ignores."""
        prefix = cls._prefix()
        known = {f"{prefix}{name.upper()}" for name in cls.model_fields}
        known |= {name + FILE_SUFFIX for name in known}
        present = [name for name in os.environ if prefix and name.startswith(prefix)]
        return [_unknown(name, known) for name in sorted(present) if name not in known]


def _read_secret(path: Path, variable: str) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ValueError(f"{variable}: cannot read {path}: {error.strerror}") from error


def _unknown(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f", did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
    return f"{name} is unknown{hint}"


def _explain(error: ValidationError, prefix: str) -> list[str]:
    """Returns one sentence for each error, by the variable's name."""
    parts = []
    for item in error.errors(include_url=False, include_context=False):
        variable = f"{prefix}{'__'.join(str(part).upper() for part in item['loc'])}"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            parts.append(f"{variable} is not set, give it")
            continue
        parts.append(f"{variable}: {message}" if item["loc"] else message)
    return parts


@contextlib.contextmanager
def stage_variables(variables: Mapping[str, object]) -> Iterator[None]:
    """Sets `explorer.env_vars` of a stage for the block: users' files may read them at import."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
