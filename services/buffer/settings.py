"""What the buffer reads from its environment."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.postgres import IDLE_TRANSACTION_SECONDS
from trinity.settings import ServiceSettings


class BufferSettings(ServiceSettings):
    """Settings of `python -m services.buffer`; addresses may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_BUFFER_")

    postgres_dsn: SecretStr
    """postgresql://user:password@host:port/database of the role that owns the schema `buffer`."""
    nats_url: SecretStr
    """nats://user:password@host:port of a broker with JetStream."""
    synchronizer: str = ""
    """Address of the synchronizer, host:port, which is told what the buffer waits for; empty tells
    nobody."""
    migrate_on_start: bool = False
    """Bring the schema to the newest revision before serving; for a launcher of one machine."""
    connect_seconds: float = Field(default=30.0, gt=0)
    """How long to wait at the start for the database and the broker."""
    stream_max_bytes: int = Field(default=2 * 1024**3, gt=0)
    """Size of the stream of results; a full one refuses results until some are stored."""
    stream_replicas: int = Field(default=1, ge=1, le=5)
    """On how many brokers of a cluster the stream is kept: 3 outlive the loss of one."""
    fetch_messages: int = Field(default=32, gt=0, le=64)
    """Most messages, of at most 1 MiB each, that are taken from the stream at once."""
    advantage_seconds: float = Field(default=10.0, gt=0)
    """How long a user's advantage function or operator may take for one call: a group, or an
    explore step where one of them asks for all of it."""
    function_memory_bytes: int = Field(default=2 * 1024**3, ge=128 * 1024**2)
    """Memory that the process of users' functions may take for its data."""
    priority_seconds: float = Field(default=10.0, gt=0)
    """How long a user's priority function may take for all samples that wait for one batch."""
    idle_transaction_seconds: float = Field(default=IDLE_TRANSACTION_SECONDS, gt=0)
    """How long a transaction may say nothing to the database, as that of a frozen replica, before
    the database ends it and frees what it has locked; `priority_seconds` come on top."""
    segment_max_rows: int = Field(default=65_536, gt=0)
    """Payload rows of one partition; the next ones go into a new partition."""
    segment_max_bytes: int = Field(default=512 * 1024**2, gt=0)
    """The same in bytes. A partition is the smallest part that `buffer.keep_steps` removes."""
    taskset_roots: str = "/"
    """Directories that tasksets may be read from, separated by colons; links that lead out of them
    are not followed."""

    @property
    def root_paths(self) -> tuple[str, ...]:
        """The directories of `taskset_roots`."""
        return tuple(root for root in self.taskset_roots.split(":") if root)


class MigrationSettings(BufferSettings):
    """Settings of `python -m services.buffer migrate`, which needs no broker."""

    nats_url: SecretStr = SecretStr("")
    """Not used."""
