"""Connections to Postgres: their options, the pool of a service, its errors and its health."""

import asyncio
import contextlib
import select
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from typing import Any, Protocol, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.generators import send
from psycopg.types.string import TextLoader
from psycopg.waiting import Ready, Wait
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from trinity.errors import NotReady, Unavailable, UserError
from trinity.runtime.security.plaintext_policy import refuse_plain_database

ValueT = TypeVar("ValueT")
MAX_PREPARED = 400
"""Prepared statements of a connection; the buffer has some 270, the driver would keep 100."""
BUSY_SECONDS = 0.005
"""After this time other tasks get a turn, however much there is to read."""
_CONNECT_SECONDS = 3
_RETRY_SECONDS = 0.05
# Detect a peer that vanished silently within seconds: TCP itself retransmits after ever longer
# pauses, and so notices as late that the peer is back.
_TCP_OPTIONS = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 2,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8_000,
}
# The same on the server's side: a session whose client is gone holds its locks until then.
_SESSION_OPTIONS = {
    "tcp_keepalives_idle": 2,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 2,
    "tcp_user_timeout": 8_000,
}
_ReadOnly = psycopg.errors.ReadOnlySqlTransaction
"""Raised by a server that became a standby, or was made read-only to save its disk."""
_WasSilent = psycopg.errors.IdleInTransactionSessionTimeout
"""The server ended a session that this process, frozen or starved, left in a transaction."""
IDLE_TRANSACTION_SECONDS = 60.0
_IDLE_SECONDS = 0.5
_USED_AT = "used_at"


class _CollectingPipeline(psycopg.AsyncPipeline):
    """Sends statements together, with the Sync after them; the driver sends each by itself."""

    def _communicate_gen(self) -> PQGen[None]:
        while self.command_queue:
            self.command_queue.popleft()()
        if self.result_queue and self.result_queue[-1] is None:  # the last one is a Sync
            yield from send(self.pgconn)


class QuickConnection(psycopg.AsyncConnection[Any]):
    """A connection that polls its socket before it waits, and sends a pipeline as a whole.

    The driver passes through the event loop for each part of an answer, some 16 KB: hundreds of
    times for a batch of experiences. Polling saves 28 % of the time of an answer of 4 MiB, but does
    not speed up small ones.

    `wait` and the insides of the pipeline are not in the driver's manual. psycopg 3.2 and 3.3 have
    them; with another version tests/unit/runtime/test_library_internals.py fails. A connection
    works without this class, too.
    """

    @contextlib.asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        """Enters the driver's pipeline mode."""
        self._check_connection_ok()
        self._pipeline = _CollectingPipeline(self)
        try:
            async with self._pipeline as pipeline:
                yield pipeline
        finally:
            self._pipeline = None

    async def wait(self, gen: PQGen[ValueT], *args: Any, **kwargs: Any) -> ValueT:
        """Completes a protocol exchange with the database."""
        return await super().wait(_poll_first(gen, self.pgconn.socket), *args, **kwargs)


def _poll_first(gen: PQGen[ValueT], fileno: int) -> Generator[Wait, Ready | int, ValueT]:
    """Drives the same exchange, but polls for an answer before yielding to the event loop."""
    poller = select.poll()
    poller.register(fileno, select.POLLIN)
    until = time.monotonic() + BUSY_SECONDS
    try:
        wanted = next(gen)
        while True:
            is_quick = wanted == Wait.R and time.monotonic() < until
            ready: Ready | int = Ready.R if is_quick and poller.poll(0) else 0
            if not ready:
                ready = yield wanted
                until = time.monotonic() + BUSY_SECONDS
            wanted = gen.send(ready)
    except StopIteration as ended:
        return cast("ValueT", ended.value)


class Readiness(Protocol):
    """A receiver of a service's readiness."""

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Records whether the service is ready, and why not."""


def sqlalchemy_url(dsn: str) -> sa.URL:
    """Converts postgresql://user:password@host:port/database into SQLAlchemy's form for psycopg.

    Raises: UserError for anything else; its text never repeats the address, which holds a password.
    """
    try:
        url = sa.make_url(dsn)
    except sa.exc.ArgumentError:
        url = None
    if url is None or not url.drivername.startswith("postgres"):
        raise UserError(
            "The database address is not of the form postgresql://user:password@host:port/database;"
            " correct the variable whose name ends in POSTGRES_DSN"
        )
    ssl_mode = url.query.get("sslmode", "")
    refuse_plain_database(_hosts(url), ssl_mode if isinstance(ssl_mode, str) else "")
    return url.set(drivername="postgresql+psycopg")


def _hosts(url: sa.URL) -> list[str]:
    """Returns every host of the address: libpq prefers those of the query to the one before it."""
    named = [url.host or ""]
    for key in ("host", "hostaddr"):
        more = url.query.get(key, "")
        named += [more] if isinstance(more, str) else more
    return [host for hosts in named for host in hosts.split(",")]


def place(dsn: str) -> str:
    """Names the database of an address without its user and password."""
    url = sqlalchemy_url(dsn)
    return f"{url.host or 'localhost'}:{url.port or 5432}/{url.database or ''}"


def connection_options(
    schema: str,
    *,
    statement_timeout_seconds: float = 0,
    idle_transaction_seconds: float = 0,
    settings: Mapping[str, str] | None = None,
) -> dict[str, str | int]:
    """Returns the options of every connection of a service; unqualified names mean `schema`."""
    settings = {
        "search_path": schema,
        "timezone": "UTC",
        "statement_timeout": _milliseconds(statement_timeout_seconds),
        "idle_in_transaction_session_timeout": _milliseconds(idle_transaction_seconds),
        **{name: str(value) for name, value in _SESSION_OPTIONS.items()},
        **(settings or {}),
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return {**_TCP_OPTIONS, "options": options, "application_name": f"trinity-{schema}"}


def async_engine(
    dsn: str,
    schema: str,
    *,
    pool_size: int = 5,
    max_overflow: int = 5,
    pool_timeout_seconds: float = 10.0,
    statement_timeout_seconds: float = 30.0,
    idle_transaction_seconds: float = IDLE_TRANSACTION_SECONDS,
    settings: Mapping[str, str] | None = None,
) -> AsyncEngine:
    """Builds a pool for `trinity.runtime.sql.transaction`, with connections in autocommit mode.

    It tests idle connections before use: a restart costs at most one call.
    A session that is silent within a transaction for `idle_transaction_seconds`, such as that of a
    frozen process, is ended and its locks released. `settings` are Postgres settings for the
    sessions of this pool.
    """
    engine = create_async_engine(
        sqlalchemy_url(dsn),
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_timeout=pool_timeout_seconds,
        pool_use_lifo=True,  # the connection that was used last has its statements prepared
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,  # `transaction` ends each
        connect_args={
            **connection_options(
                schema,
                statement_timeout_seconds=statement_timeout_seconds,
                idle_transaction_seconds=idle_transaction_seconds,
                settings=settings,
            ),
            "async_creator_fn": QuickConnection.connect,
        },
    )
    sa.event.listen(engine.sync_engine, "connect", _prepare_driver)
    _ping_idle_connections(engine.sync_engine)
    return engine


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def _ping_idle_connections(engine: sa.Engine) -> None:
    """Pings idle connections; `pool_pre_ping` pings always, a third more statements when busy.

    After one connection was lost, it pings the others too, before their next use.
    """
    lost_at = float("-inf")

    @sa.event.listens_for(engine, "connect")
    @sa.event.listens_for(engine, "checkin")
    def note(_: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    @sa.event.listens_for(engine, "invalidate")
    def note_lost(*_: object) -> None:
        nonlocal lost_at
        lost_at = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def test(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        used_at = record.info[_USED_AT]
        if used_at > lost_at and time.monotonic() - used_at < _IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg.Error as error:
            raise sa.exc.InvalidatePoolError from error


def _prepare_driver(connection: DBAPIConnection, _: object) -> None:
    """Keeps UUIDs as text, since making objects of them takes time, and all statements prepared."""
    driver = connection.driver_connection
    driver.adapters.register_loader("uuid", TextLoader)
    driver.prepared_max = MAX_PREPARED


@contextlib.contextmanager
def map_database_errors() -> Iterator[None]:
    """Turns a database that is down, overloaded, read-only or broke a deadlock into Unavailable."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError, psycopg.Error) as error:
        if not _may_pass(error):
            raise
        raise _unavailable(error) from error


def _may_pass(error: Exception) -> bool:
    """Returns true when a retry may succeed; values that are too large stay too large."""
    cause = _cause_of(error)
    if isinstance(cause, psycopg.errors.ProgramLimitExceeded):
        return False
    if isinstance(cause, (sa.exc.TimeoutError, psycopg.OperationalError, _ReadOnly, _WasSilent)):
        return True
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def _unavailable(error: Exception) -> Unavailable:
    cause = _cause_of(error)
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, _ReadOnly):
        return NotReady(f"The database takes no changes: {reason}")
    return Unavailable(f"The database does not answer: {reason}")


def _cause_of(error: Exception) -> BaseException | None:
    return error.orig if isinstance(error, sa.exc.DBAPIError) else error


async def ping(engine: AsyncEngine) -> None:
    """Returns when the database has answered.

    Raises: Unavailable.
    """
    with map_database_errors():
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))


class Probe:
    """Checks repeatedly that the database answers; needs a separate engine.

    A pool that is merely busy must not look like a database that is down. A frozen database does
    not release a query, not even a cancelled one, so an unanswered ping is not abandoned but
    awaited again.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._pending: asyncio.Task[None] | None = None

    async def check(self, timeout_seconds: float) -> None:
        """Returns when the database has answered.

        Raises: Unavailable when it does not within the time.
        """
        pending = self._pending or asyncio.create_task(ping(self._engine))
        self._pending = pending
        done, _ = await asyncio.wait({pending}, timeout=timeout_seconds)
        if not done:
            raise Unavailable(f"The database has not answered for {timeout_seconds:.0f} s")
        self._pending = None
        pending.result()

    def close(self) -> None:
        """Cancels a pending ping."""
        if self._pending is not None:
            self._pending.cancel()


async def report_health(
    engine: AsyncEngine, health: Readiness, stop: asyncio.Event, interval_seconds: float = 2.0
) -> None:
    """Reports readiness by the database's answers until `stop`; the engine is as for a `Probe`."""
    with contextlib.closing(Probe(engine)) as probe:
        while not stop.is_set():
            try:
                await probe.check(interval_seconds)
            except Unavailable as error:
                await health.set_ready(False, str(error))
            else:
                await health.set_ready(True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_seconds):
                    await stop.wait()


async def wait_until_up(
    dsn: str, timeout_seconds: float, stop: asyncio.Event | None = None
) -> bool:
    """Returns true when the database accepts connections, false when `stop` came first.

    Raises: UserError when it refuses this user, or is still down after the time.
    """
    stop = stop or asyncio.Event()
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while not stop.is_set():
        try:
            async with await psycopg.AsyncConnection.connect(libpq_dsn(dsn)):
                return True
        except psycopg.OperationalError as error:
            # A server that has asked for a password is up: waiting does not change its answer.
            is_refused = error.pgconn is not None and error.pgconn.used_password
            if is_refused or asyncio.get_running_loop().time() > deadline:
                verb = "refuses the connection" if is_refused else "does not answer"
                raise UserError(
                    f"The database at {place(dsn)} {verb}: start it, or correct the variable "
                    f"whose name ends in POSTGRES_DSN ({str(error).splitlines()[0]})"
                ) from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await stop.wait()
    return False


def libpq_dsn(dsn: str, application_name: str = "trinity") -> str:
    """Converts an address into the form for a direct psycopg connection."""
    url = sqlalchemy_url(dsn).set(drivername="postgresql")
    plain = url.render_as_string(hide_password=False)
    return make_conninfo(plain, application_name=application_name, **_TCP_OPTIONS)
