"""A stack on one machine, with stand-ins for the four services."""

import asyncio
import errno
import os
import signal
import stat
from pathlib import Path

import nats
import psycopg
import pytest

from tests.integration.local.stacks import (
    Watched,
    next_event,
    no_services,
    one_service,
    process,
    ready_at_once,
    running_stack,
    serving,
)
from tests.support.small_disk import fill, small_disk
from trinity.errors import RunFailed, UserError
from trinity.run.local.addresses import SERVICES
from trinity.run.local.infrastructure import ExternalServers, ProcessWithProbe
from trinity.run.local.process_spec import EventKind
from trinity.run.local.run_file import RunningStack, read_running
from trinity.run.local.services import StackContext, wait_serving
from trinity.run.local.stack import LocalStack

_PAUSE = "import signal; signal.pause()"


def _secret(job_dir: Path, name: str) -> str:
    return (job_dir / "infra" / "secrets" / name).read_text()


async def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    async with LocalStack(job_dir=tmp_path, externals=ExternalServers(), services=no_services):
        secrets = list((tmp_path / "infra" / "secrets").iterdir())
        secrets += [tmp_path / "run.json", tmp_path / "infra" / "nats" / "nats.conf"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in secrets}
    assert len(modes) > 6
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
async def test_a_broker_whose_disk_was_full_stores_again_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        job = tmp_path / "disk" / "job"
        async with LocalStack(job_dir=job, externals=ExternalServers(), services=no_services) as it:
            client = await nats.connect(_secret(job, "admin-nats-url"), allow_reconnect=False)
            await client.jetstream().add_stream(name="results", subjects=["trinity.>"])
            ballast = fill(tmp_path / "disk")
            with pytest.raises(nats.errors.TimeoutError):
                while True:
                    await client.jetstream().publish("trinity.results.1", bytes(4096), timeout=2)
            ballast.unlink()
            with pytest.raises(nats.errors.TimeoutError):  # the control: room alone does not help
                await client.jetstream().publish("trinity.results.1", b"x", timeout=1)
            await next_event(it, EventKind.RESTARTED, "nats")
            await next_event(it, EventKind.READY, "nats")
            client = await nats.connect(_secret(job, "admin-nats-url"))
            await client.jetstream().publish("trinity.results.1", b"x")
            await client.close()


async def test_a_second_start_finds_the_data_of_the_first(tmp_path: Path) -> None:
    async with LocalStack(job_dir=tmp_path, externals=ExternalServers(), services=no_services):
        with psycopg.connect(_secret(tmp_path, "buffer-postgres-dsn")) as buffer:
            buffer.execute("CREATE TABLE rows AS SELECT 7 AS id")
        client = await nats.connect(_secret(tmp_path, "admin-nats-url"))
        await client.jetstream().add_stream(name="results", subjects=["trinity.>"])
        await client.jetstream().publish("trinity.results.1", b"x")
        await client.close()
    async with LocalStack(job_dir=tmp_path, externals=ExternalServers(), services=no_services):
        with psycopg.connect(_secret(tmp_path, "buffer-postgres-dsn")) as buffer:
            assert buffer.execute("SELECT id FROM rows").fetchall() == [(7,)]
        client = await nats.connect(_secret(tmp_path, "admin-nats-url"))
        assert (await client.jetstream().stream_info("results")).state.messages == 1
        await client.close()


async def test_the_run_file_tells_who_runs_and_goes_with_the_stack(tmp_path: Path) -> None:
    async with LocalStack(
        job_dir=tmp_path, externals=ExternalServers(), services=one_service()
    ) as stack:
        running = running_stack(tmp_path)
        assert running.addresses == stack.addresses
        assert set(running.pids) == {"nats", "postgres", "buffer"}
        watched = Watched(list(running.pids.values()))
    assert read_running(tmp_path) is None
    watched.wait_for_ends()


async def test_a_second_run_in_the_same_directory_is_refused_by_name(
    tmp_path: Path, externals: ExternalServers
) -> None:
    async with LocalStack(job_dir=tmp_path, externals=externals, services=no_services):
        with pytest.raises(UserError, match=rf"process {os.getpid()}\) runs in {tmp_path}"):
            async with LocalStack(job_dir=tmp_path, externals=externals, services=no_services):
                pass


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_dead_service_returns_on_its_address(
    tmp_path: Path, externals: ExternalServers, signal_number: signal.Signals
) -> None:
    async with LocalStack(job_dir=tmp_path, externals=externals, services=one_service()) as stack:
        before = stack.pids["buffer"]
        os.kill(before, signal_number)
        await next_event(stack, EventKind.RESTARTED, "buffer")
        await next_event(stack, EventKind.READY, "buffer")
        await wait_serving("buffer", stack.addresses.buffer, 10.0)
        running = read_running(tmp_path)
        assert running is not None
        assert running.deaths["buffer"].pid == before


async def test_a_killed_database_and_a_killed_broker_return_with_their_data(
    tmp_path: Path,
) -> None:
    async with LocalStack(
        job_dir=tmp_path, externals=ExternalServers(), services=no_services
    ) as stack:
        dsn = _secret(tmp_path, "buffer-postgres-dsn")
        with psycopg.connect(dsn) as buffer:
            buffer.execute("CREATE TABLE rows AS SELECT 7 AS id")
        for name in ("postgres", "nats"):
            os.kill(stack.pids[name], signal.SIGKILL)
            await next_event(stack, EventKind.RESTARTED, name)
            await next_event(stack, EventKind.READY, name)
        with psycopg.connect(dsn) as buffer:
            assert buffer.execute("SELECT id FROM rows").fetchall() == [(7,)]
        client = await nats.connect(_secret(tmp_path, "buffer-nats-url"))
        await client.close()


async def test_a_database_that_is_told_to_end_does_not_wait_for_its_clients(tmp_path: Path) -> None:
    """At SIGTERM Postgres lets in no new ones, and serves those who are there for good."""
    async with LocalStack(
        job_dir=tmp_path, externals=ExternalServers(), services=no_services
    ) as stack:
        dsn = _secret(tmp_path, "buffer-postgres-dsn")
        with psycopg.connect(dsn):
            os.kill(stack.pids["postgres"], signal.SIGTERM)
            await next_event(stack, EventKind.RESTARTED, "postgres")
        await next_event(stack, EventKind.READY, "postgres")
        with psycopg.connect(dsn) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)


async def test_a_service_that_keeps_dying_is_given_up_with_its_log(
    tmp_path: Path, externals: ExternalServers
) -> None:
    def services(around: StackContext) -> list[ProcessWithProbe]:
        argv = ["-c", "print('no more disk'); raise SystemExit(7)"]
        return [ProcessWithProbe(process(around, "buffer", argv, max_restarts=1), ready_at_once)]

    async with LocalStack(job_dir=tmp_path, externals=externals, services=services) as stack:
        failure = await next_event(stack, EventKind.FAILED, "buffer")
        assert failure.reason == "ended with exit code 7 after 1 restarts"
        assert failure.log_file == str(tmp_path / "log" / "buffer.log")
        assert failure.log_tail.splitlines() == ["no more disk", "no more disk"]


async def test_a_service_that_does_not_find_the_others_when_it_is_back_is_started_again(
    tmp_path: Path, externals: ExternalServers
) -> None:
    """A database that recovers may take longer than a service waits for it at its start."""
    waits = (
        "import pathlib, signal, sys; lives = pathlib.Path(sys.argv[1]); "
        "life = len(lives.read_text()) if lives.exists() else 0; "
        "lives.write_text('x' * (life + 1)); "
        "sys.exit(2) if life in (1, 2) else signal.pause()"
    )

    def services(around: StackContext) -> list[ProcessWithProbe]:
        argv = ["-c", waits, str(tmp_path / "lives")]
        return [ProcessWithProbe(process(around, "buffer", argv), ready_at_once)]

    async with LocalStack(job_dir=tmp_path, externals=externals, services=services) as stack:
        await until_written(tmp_path / "lives", "x")
        os.kill(stack.pids["buffer"], signal.SIGKILL)
        await until_written(tmp_path / "lives", "xxxx")


async def until_written(path: Path, content: str) -> None:
    async with asyncio.timeout(60.0):
        while not path.exists() or path.read_text() != content:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


async def test_refused_settings_are_shown_at_once(
    tmp_path: Path, externals: ExternalServers
) -> None:
    def services(around: StackContext) -> list[ProcessWithProbe]:
        argv = ["-c", "print('TRINITY_BUFFER_PORTT is unknown'); raise SystemExit(2)"]
        waiting = serving(around, "buffer")
        return [ProcessWithProbe(process(around, "buffer", argv), waiting.wait_ready)]

    with pytest.raises(UserError, match="buffer refused to start: TRINITY_BUFFER_PORTT is unk"):
        async with LocalStack(job_dir=tmp_path, externals=externals, services=services):
            pass


async def test_a_stack_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    pids: list[int] = []

    async def fail() -> None:
        pids.extend(stack.pids.values())
        watched.append(Watched(pids))
        raise RunFailed("not today")

    watched: list[Watched] = []
    stack = LocalStack(
        job_dir=tmp_path,
        externals=ExternalServers(),
        services=lambda around: [ProcessWithProbe(process(around, "buffer", ["-c", _PAUSE]), fail)],
    )
    with pytest.raises(RunFailed, match="not today"):
        await stack.__aenter__()
    assert len(pids) >= 2
    watched[0].wait_for_ends()


async def test_services_stop_before_what_they_need(
    tmp_path: Path, externals: ExternalServers
) -> None:
    notes = tmp_path / "stops"

    def services(around: StackContext) -> list[ProcessWithProbe]:
        return [serving(around, name, "--note-stop", str(notes), name) for name in SERVICES]

    async with LocalStack(job_dir=tmp_path, externals=externals, services=services):
        pass
    assert notes.read_text().split() == ["explorer", "trainer", "buffer", "synchronizer"]


async def test_a_service_deaf_to_sigterm_is_killed_after_its_grace(
    tmp_path: Path, externals: ExternalServers
) -> None:
    async with LocalStack(
        job_dir=tmp_path, externals=externals, services=one_service("--ignore-term")
    ) as stack:
        watched = Watched([stack.pids["buffer"]])
    watched.wait_for_ends(0.0)


async def test_a_full_disk_at_a_restart_keeps_nobody_from_hearing_of_the_next(
    tmp_path: Path, externals: ExternalServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with LocalStack(job_dir=tmp_path, externals=externals, services=one_service()) as stack:
        monkeypatch.setattr(RunningStack, "write_run_file", fail)
        for _ in range(2):
            os.kill(stack.pids["buffer"], signal.SIGKILL)
            await next_event(stack, EventKind.RESTARTED, "buffer")
            await next_event(stack, EventKind.READY, "buffer")
