"""Settings of the explorer, from TRINITY_EXPLORER_... variables."""

import socket
import uuid

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.runtime.settings import ServiceSettings


class ExplorerSettings(ServiceSettings):
    """Addresses of the other services, and limits of the explorer's work."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_EXPLORER_")

    synchronizer: str
    """Address of the synchronizer, host:port."""

    buffer: str
    """Address of the buffer, host:port."""

    nats_url: SecretStr
    """Address of the broker that carries results, with user and password."""

    tenant: str = ""
    """Tenant whose experiments it works on. Empty is that of its token, or all where there is no
    token. Tenants' code runs in its process."""

    all_tenants: bool = False
    """Accept a token for all tenants, whose code then runs in this process and can read it."""

    lease_seconds: float = Field(default=15.0, ge=1)
    """Seconds for which work stays leased without a renewal."""

    runs_per_runner: int | None = Field(default=None, ge=1)
    """Runs in progress for each of `explorer.runner_per_model`, in the place of
    `explorer.runs_per_runner`."""

    run_log_dir: str = ""
    """Folder for the logs of runners, `explorer_runner_<n>.log`, with what workflows log. Without
    it, their lines are among the explorer's own and name their runner."""

    max_unconfirmed: int = Field(default=4096, ge=1)
    """Results held in memory until they are committed; beyond it no work is taken."""

    num_hosts: int = Field(default=1, ge=1)
    """Hosts of the one engine, each with an explorer service. Its workers are shared out evenly."""

    host: int = Field(default=0, ge=0)
    """Number of this host; 0 leads and explores, the others have workers and do as it says."""

    leader: str = ""
    """Address of the leading explorer, host:port; for the other hosts."""

    engine_address: str = "127.0.0.1"
    """IP address of this host at which its workers talk to those of other hosts, on ports that the
    kernel chooses. The traffic is neither encrypted nor authenticated: it must be of loopback or of
    a private network."""

    host_wait_seconds: float = Field(default=600.0, gt=0)
    """Time that an engine waits for a host that is not there before its stage fails."""

    @property
    def lease_holder(self) -> str:
        """The name under which leases are held, the same for all processes at a fixed address.

        Only one process at a time can listen there, so its successor may release a killed process's
        leases. Empty if the port is any free one.
        """
        if self.listen.endswith(":0"):
            return ""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{socket.gethostname()}/{self.listen}"))
