"""Settings of the buffer from its environment."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from trinity.runtime.postgres import IDLE_TRANSACTION_SECONDS
from trinity.runtime.rpc.quotas import QuotaText
from trinity.runtime.settings import ServiceSettings


class BufferSettings(ServiceSettings):
    """Settings of `python -m services.buffer`; addresses may be given as `..._FILE`."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_BUFFER_")

    postgres_dsn: SecretStr
    """postgresql://user:password@host:port/database of the role that owns the schema `buffer`."""
    nats_url: SecretStr
    """nats://user:password@host:port of a broker with JetStream."""
    synchronizer: str = ""
    """Address of the synchronizer, host:port, to which the buffer reports its waits; empty disables
    the reports."""
    migrate_on_start: bool = False
    """Upgrade the schema to the newest revision before serving; for single-machine launchers."""
    connect_seconds: float = Field(default=30.0, gt=0)
    """Time to wait at startup for the database and the broker."""
    stream_max_bytes: int = Field(default=2 * 1024**3, gt=0)
    """Size of the stream of results; a full stream refuses results until some are stored."""
    stream_replicas: int = Field(default=1, ge=1, le=5)
    """Number of brokers of a cluster that keep the stream: 3 survive the loss of one."""
    tenant_blob_bytes: QuotaText = "8GiB"
    """Large parts of results that one tenant may have waiting to be stored, as in `8GiB` or
    `8GiB, research=32GiB`."""
    tenant_upload_memory_bytes: QuotaText = "128MiB"
    """Memory that such parts of one tenant may take while they arrive, of 256 MiB for all."""
    tenant_media_bytes: QuotaText = "256GiB"
    """Images of tasksets, samples and turns that one tenant may have stored."""
    tenant_taskset_bytes: QuotaText = "64GiB"
    """Tasks that one tenant may have submitted, in bytes."""
    tenant_tasksets: QuotaText = "10000"
    """Tasksets that one tenant may have submitted."""
    tenant_uploads: QuotaText = "256"
    """Unfinished submissions of tasks that one tenant may have."""
    tenant_sessions: QuotaText = "100000"
    """Sessions of clients that one tenant may have opened within a week."""
    tenant_session_bytes: QuotaText = "256GiB"
    """Turns and samples that the runs with clients of one tenant may have stored, in bytes: with
    more, no session is opened and no turn is stored."""
    fetch_messages: int = Field(default=32, gt=0, le=64)
    """Most messages, of at most 1 MiB each, that are taken from the stream at once."""
    advantage_seconds: float = Field(default=10.0, gt=0)
    """Time limit for one call of a user-defined advantage function or operator: on a group, or on
    an explore step if one of them needs the whole step."""
    function_memory_bytes: int = Field(default=2 * 1024**3, ge=128 * 1024**2)
    """Memory limit for the data of the process that runs users' functions."""
    priority_seconds: float = Field(default=10.0, gt=0)
    """Time limit for a user's priority function on all samples that wait for one batch."""
    idle_transaction_seconds: float = Field(default=IDLE_TRANSACTION_SECONDS, gt=0)
    """Time that a transaction may be idle, as in a frozen replica, before the database aborts it
    and releases its locks; `priority_seconds` are added."""
    segment_max_rows: int = Field(default=65_536, gt=0)
    """Most payload rows of one partition; further rows go into a new partition."""
    segment_max_bytes: int = Field(default=512 * 1024**2, gt=0)
    """The same in bytes. A partition is the smallest part that `buffer.keep_steps` removes."""
    function_tenants: str = ""
    """Tenants that may run their own operators, advantage and priority functions here, separated by
    commas, or `*`. A plug-in has to define or register the functions; `TENANT=*` allows those of
    any module. If empty, no tenant may in a secured buffer; without tokens it is `*=*`, unless
    roots or addresses are set."""
    function_network: bool | None = None
    """True gives these functions network access; by default false in a secured buffer."""
    function_trust: bool = False
    """True lets a secured buffer run these functions on a machine that allows no box around them:
    they then have all rights of the buffer."""
    function_variables: str = ""
    """Names of further environment variables that these functions see, separated by commas."""
    taskset_roots: str = ""
    """Directories that tasksets may be read from, separated by colons; links that lead outside are
    not followed. `TENANT=/path` is for one tenant, `{tenant}` stands for its name. If empty, a
    secured buffer reads no directory; without tokens it is `/`, unless addresses or functions are
    set."""
    taskset_addresses: str = ""
    """Other sources of tasksets, separated by commas, with `TENANT=` like directories:
    `postgresql://user@host:port/database`, `hub`, `hub:owner/name`, the address of a Data-Juicer
    server, or `*` for all. If empty, a secured buffer allows no source; without tokens it is `*`,
    unless roots or functions are set."""


class MigrationSettings(BufferSettings):
    """Settings of `python -m services.buffer migrate`, which needs no broker."""

    nats_url: SecretStr = SecretStr("")
    """Not used."""
