"""Settings of the trainer service."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trinity.runtime.settings import ServiceSettings


class TrainerSettings(ServiceSettings):
    """Read from `TRINITY_TRAINER_...`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_TRAINER_")

    buffer: str
    """Address of the buffer, host:port."""
    synchronizer: str
    """Address of the synchronizer, host:port."""
    tenant: str = ""
    """The tenant whose experiments it trains. Empty is that of its token, or all where there is no
    token."""
    all_tenants: bool = False
    """Accept a token for all tenants, whose code then runs in its ranks and can read it."""
    transfer_host: str = "127.0.0.1"
    """IP address on which `sync_method: nccl` sends weights, on ports that the kernel chooses.
    The traffic is neither encrypted nor authenticated by a token: use a private network's
    address."""
    num_hosts: int = Field(default=1, ge=1)
    """Hosts of the worker group, each with a trainer service. All have the same number of ranks."""
    host: int = Field(default=0, ge=0)
    """Number of this host; 0 leads, the others have ranks and do as it says."""
    leader: str = ""
    """Address of the leading trainer, host:port; for the other hosts."""
    gang_address: str = "127.0.0.1"
    """IP address of this host at which its ranks talk to those of other hosts, on ports that the
    kernel chooses. The traffic is neither encrypted nor authenticated: it must be of loopback or of
    a private network."""
    host_wait_seconds: float = Field(default=600.0, gt=0)
    """Time to wait for a missing host before the attempt counts as failed."""
    preload_ranks: int = Field(default=1, ge=0)
    """Ranks started at once, before a stage asks: importing takes longer than anything else."""
    max_restarts: int = Field(default=3, ge=0)
    """Restarts of the worker group without a newly trained step before the stage fails."""
    stop_seconds: float = Field(default=8.0, ge=0)
    """Time that ranks may take to stop before they are killed."""
