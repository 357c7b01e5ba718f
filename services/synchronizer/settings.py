"""Settings of the synchronizer."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.runtime.postgres import IDLE_TRANSACTION_SECONDS
from trinity.runtime.rpc.quotas import QuotaText
from trinity.runtime.settings import ServiceSettings


class SynchronizerSettings(ServiceSettings):
    """Settings from `TRINITY_SYNCHRONIZER_*` variables."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_SYNCHRONIZER_")

    postgres_dsn: SecretStr
    """Database of the experiments: postgresql://user:password@host:port/database."""

    postgres_wait_seconds: float = Field(default=30.0, ge=0)
    """How long to wait at the start for a database that does not respond."""

    postgres_pool_size: int = Field(default=5, ge=1)
    """Connections kept to the database, besides three: for notifications, heartbeats and the health
    check. As many more may be opened temporarily."""

    idle_transaction_seconds: float = Field(default=IDLE_TRANSACTION_SECONDS, gt=0)
    """How long a transaction may be idle, as that of a frozen replica, before the database ends it
    and releases its locks."""

    tenant_members: QuotaText = "1000"
    """Processes with a token of one tenant that may have reported in the last ten minutes, as in
    `1000` or `1000, research=5000`."""

    migrate_on_start: bool = False
    """Migrate the schema to the newest revision at the start; otherwise an older one is refused."""
