"""Settings of the synchronizer."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.postgres import IDLE_TRANSACTION_SECONDS
from trinity.settings import ServiceSettings


class SynchronizerSettings(ServiceSettings):
    """What `TRINITY_SYNCHRONIZER_*` variables say."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_SYNCHRONIZER_")

    postgres_dsn: SecretStr
    """Database of the experiments: postgresql://user:password@host:port/database."""

    postgres_wait_seconds: float = Field(default=30.0, ge=0)
    """How long to wait at the start for a database that does not answer."""

    postgres_pool_size: int = Field(default=5, ge=1)
    """Connections that are kept to the database, besides three: for notifications, heartbeats and
    to ask whether it answers. As many more may come for a moment."""

    idle_transaction_seconds: float = Field(default=IDLE_TRANSACTION_SECONDS, gt=0)
    """How long a transaction may say nothing to the database, as that of a frozen replica, before
    the database ends it and frees what it has locked."""

    migrate_on_start: bool = False
    """Bring the schema to the newest revision first; otherwise an older one is refused."""
