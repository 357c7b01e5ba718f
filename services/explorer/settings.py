"""Settings of the explorer, from TRINITY_EXPLORER_... variables."""

import socket
import uuid

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.settings import ServiceSettings
from trinity.sizing.runs import RUNS_PER_RUNNER


class ExplorerSettings(ServiceSettings):
    """Where the explorer finds the others, and how much it takes on."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_EXPLORER_")

    synchronizer: str
    """Address of the synchronizer, host:port."""

    buffer: str
    """Address of the buffer, host:port."""

    nats_url: SecretStr
    """Address of the broker that carries results, with user and password."""

    tenant: str = ""
    """Whose experiments it works on; empty for everybody's. Their own code runs in its process."""

    lease_seconds: float = Field(default=15.0, ge=1)
    """How long work is held without a sign of life."""

    runs_per_runner: int = Field(default=RUNS_PER_RUNNER, ge=1)
    """Runs that may go on at once for each of `explorer.runner_per_model`; they mostly wait."""

    max_unconfirmed: int = Field(default=4096, ge=1)
    """Results held in memory until they are committed; beyond it no work is taken."""

    @property
    def lease_holder(self) -> str:
        """The name under which leases are held, one for all who ever serve at a fixed address.

        Only one process can, so what a killed one held is its successor's to give back. Empty where
        the address is whichever is free.
        """
        if self.listen.endswith(":0"):
            return ""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{socket.gethostname()}/{self.listen}"))
