"""Contexts: names for the addresses and tokens of deployments, in a file of the user's own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from trinity.config.error_collector import did_you_mean
from trinity.errors import UserError
from trinity.run.places import Deployment
from trinity.runtime.security.credentials import Credentials

VARIABLE = "TRINITY_CONTEXTS"
CONFIG_HOME = "XDG_CONFIG_HOME"


class Context(BaseModel):
    """The addresses of a deployment, host:port, and what is shown to its services."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    synchronizer: str
    buffer: str
    security: str = ""
    """The folder of certificates, with the token if `token` is empty."""
    token: str = ""

    def deployment(self, experiment: str = "") -> Deployment:
        """Returns the deployment; without a folder, the environment names one."""
        found = Credentials.from_folder(self.security) if self.security else None
        security = found or Credentials.from_environment()
        return Deployment(
            synchronizer=self.synchronizer,
            buffer=self.buffer,
            experiment=experiment,
            security=security.for_bearer(self.token) if self.token else security,
        )


class Contexts(BaseModel):
    """The contexts of a user by name, and the one that is used unless a command names another."""

    model_config = ConfigDict(extra="forbid")

    current: str = ""
    contexts: dict[str, Context] = {}

    @classmethod
    def load(cls) -> "Contexts":
        """Returns the stored contexts; none without a file.

        Raises: UserError if the file holds something else.
        """
        path = contexts_file()
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} holds no contexts, mend or remove it: {error}") from error

    def save(self) -> None:
        """Writes the file, which only its owner may read, at once."""
        path = contexts_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as to:
            json.dump(self.model_dump(), to, indent=2)
        temporary.replace(path)

    def named(self, name: str) -> Context:
        """Raises: UserError if there is no context of this name."""
        if (found := self.contexts.get(name)) is None:
            raise UserError(
                f"there is no context {name!r}{did_you_mean(name, self.contexts)}: "
                "`trinity context list` shows them"
            )
        return found

    def lines(self) -> Iterator[str]:
        """Yields a line for each context; the current one is marked."""
        for name, context in sorted(self.contexts.items()):
            mark = "*" if name == self.current else " "
            yield f"{mark} {name:20} {context.synchronizer}  {context.buffer}"


def contexts_file() -> Path:
    """Returns the file: TRINITY_CONTEXTS, or one in the user's folder of configurations."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    home = os.environ.get(CONFIG_HOME) or Path.home() / ".config"
    return Path(home) / "trinity" / "contexts.json"
