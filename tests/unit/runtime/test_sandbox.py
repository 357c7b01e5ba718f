"""A sandbox keeps a run's files and shuts its processes in; each way out is open without one."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.runtime import escapes
from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.runtime.process import sandbox as sandbox_module
from trinity.runtime.process.box import Box, box_refusal, python_paths
from trinity.runtime.process.child_process import Identity
from trinity.runtime.process.sandbox import (
    CommandOutcome,
    Sandbox,
    SandboxFailed,
    SandboxSpec,
    open_sandbox,
)
from trinity.runtime.process.sandbox_root import join_cgroup

needs_sandbox = pytest.mark.skipif(
    bool(box_refusal(Box(readable=python_paths(), has_children=True))),
    reason="this machine allows no sandbox",
)
MIB = 2**20
SMALL = SandboxSpec(memory_bytes=96 * MIB, disk_bytes=32 * MIB, max_processes=64)
TOO_MUCH = 192 * MIB
KEY = 0x51A5
ESCAPES = Path(escapes.__file__).read_bytes()
WAYS = ("as root", "as another user")
USER = 61_234


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has sandboxes made by root, or by another user with the Python of the system."""
    if request.param == WAYS[0] and os.geteuid() != 0:
        pytest.skip("this user is not root")
    if request.param == WAYS[1] and os.geteuid() == 0:
        if not os.path.exists("/usr/bin/python3"):
            pytest.skip("there is no Python that other users may start")
        made, user = sandbox_module._native_command, Identity("user", USER, USER)
        monkeypatch.setattr(sandbox_module, "_python_folders", lambda _: ())
        monkeypatch.setattr(
            sandbox_module,
            "_native_command",
            lambda *given: user.command(made(*given), death_signal=signal.SIGTERM),
        )
    return str(request.param)


@asynccontextmanager
async def escaping(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with open_sandbox(spec) as sandbox:
        await sandbox.write("escapes.py", ESCAPES)
        yield sandbox


async def came_out(sandbox: Sandbox, name: str, argument: object) -> bool:
    command = ["python3", "escapes.py", name, json.dumps(argument)]
    outcome = await sandbox.run(command, seconds=60.0, ends_others=True)
    return outcome.output.endswith(b"1\n")


def comes_out_without(name: str, argument: object) -> bool:
    command = [sys.executable, escapes.__file__, name, json.dumps(argument)]
    outcome = subprocess.run(command, capture_output=True, start_new_session=True, timeout=120)
    return outcome.stdout.endswith(b"1\n")


@pytest.fixture
def attacks(tmp_path: Path) -> Iterator[list[tuple[str, object]]]:
    """Ways that are open to the user of these tests."""
    secret, own = tmp_path / "token", Path(__file__)
    secret.write_text("secret")
    libc = ctypes.CDLL(None)
    shared = libc.shmget(KEY, 4096, 0o1600)
    name = f"trinity-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        yield [
            ("signals", os.getpid()),
            ("sees", os.getpid()),
            ("ends_the_first", None),
            ("reads", str(secret)),
            ("opens", str(secret)),
            ("opens", str(own)),
            ("connects", tcp.getsockname()[1]),
            ("connects_by_name", name),
            ("finds_shared_memory", KEY),
            ("takes_memory", TOO_MUCH),
            ("takes_anonymous_memory", TOO_MUCH),
            ("takes_memory_in_a_file", TOO_MUCH),
            ("fills", ["/tmp/filled", TOO_MUCH]),
            ("fills", ["/dev/shm/filled", TOO_MUCH]),
            ("starts_many", 100),
            ("enters_a_namespace", None),
            *([("opens", "/proc/sys/kernel/core_pattern")] if os.geteuid() == 0 else []),
            *([("makes_a_device", "device")] if os.geteuid() == 0 else []),
        ]
    libc.shmctl(shared, 0, None)


@needs_sandbox
async def test_no_way_leads_out(way: str, attacks: list[tuple[str, object]]) -> None:
    async with escaping(SMALL) as sandbox:
        found = [name for name, argument in attacks if await came_out(sandbox, name, argument)]
    # Where no cgroup counts, the limit of what processes share is that of address space.
    assert found == ([] if way == WAYS[0] and cgroups_are_made() else ["takes_anonymous_memory"])


def test_control_without_the_sandbox_each_way_is_open(
    attacks: list[tuple[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    closed = [each for each in attacks if not comes_out_without(*each)]
    assert closed == []


@needs_sandbox
async def test_all_processes_together_have_one_limit_of_memory_where_a_cgroup_counts() -> None:
    if not cgroups_are_made():
        pytest.skip("no cgroup can be made here")
    async with escaping(SMALL) as sandbox:
        assert not await came_out(sandbox, "takes_memory_in_children", TOO_MUCH)
        pid = sandbox._worker.process.pid
        assert cgroups(pid)
    assert comes_out_without("takes_memory_in_children", TOO_MUCH)
    assert not cgroups(pid)


def cgroups(pid: int) -> list[Path]:
    """The cgroups below this process's of the sandbox that a process has made."""
    found: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "memory"):
            found += Path("/sys/fs/cgroup", names, path.strip("/")).glob(f"trinity-sandbox-{pid}")
    return found


def cgroups_are_made() -> bool:
    child = subprocess.Popen(["sleep", "60"])
    made = join_cgroup(child.pid, 2**30, Path("/proc/self/cgroup").read_text())
    child.kill()
    child.wait()
    if made:
        made.rmdir()
    return made is not None


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_output_is_bounded_and_its_end_is_kept() -> None:
    async with open_sandbox(SMALL) as sandbox:
        flood = "yes 2>/dev/null | head -c 5000000; echo the end"
        outcome = await sandbox.run(["bash", "-c", flood], seconds=60.0, max_bytes=1000)
    assert len(outcome.output) == 1000 and outcome.output.endswith(b"the end\n")
    assert outcome.num_left_out == 5_000_008 - 1000


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_what_takes_too_long_is_killed_with_all_that_runs() -> None:
    async with open_sandbox(SMALL) as sandbox:
        script = "setsid sleep 600 & echo $! > pid; sleep 600"
        outcome = await sandbox.run(["bash", "-c", script], seconds=2.0)
        assert outcome.is_late and outcome.code == -signal.SIGKILL
        assert await text_of(sandbox, "test -e /proc/$(cat pid) || echo gone") == "gone\n"


async def text_of(sandbox: Sandbox, script: str, **options: Any) -> str:
    outcome = await sandbox.run(["bash", "-c", script], seconds=60.0, **options)
    return outcome.output.decode()


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_what_a_command_starts_goes_on_until_others_are_ended() -> None:
    async with open_sandbox(SMALL) as sandbox:
        await text_of(sandbox, "setsid sleep 600 & echo $! > pid")
        seen = "test -e /proc/$(cat pid) && echo there"
        assert await text_of(sandbox, seen) == "there\n"
        await text_of(sandbox, "true", ends_others=True)
        assert await text_of(sandbox, seen) == ""


BOMB = """
import os, time
try:
    while os.fork():
        pass
    time.sleep(600)
except OSError:
    pass
"""


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_a_sandbox_is_used_again_after_a_command_has_taken_all_processes() -> None:
    async with open_sandbox(SMALL) as sandbox:
        await sandbox.run(["python3", "-c", BOMB], seconds=60.0)
        assert await text_of(sandbox, "echo again") == "again\n"


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_files_are_written_read_and_listed() -> None:
    async with open_sandbox(SMALL) as sandbox:
        await sandbox.write("below/this/name", b"a\0b")
        assert await sandbox.read("below/this/name") == b"a\0b"
        assert await sandbox.list() == ["below/"]
        assert await text_of(sandbox, "cat below/this/name | wc -c; pwd; id -u") == (
            "3\n/sandbox\n0\n"
        )
        for call in (sandbox.read("none"), sandbox.list("none"), sandbox.write("/proc/x", b"")):
            with pytest.raises(SandboxFailed, match=r"No such file|Read-only|Permission"):
                await call
        with pytest.raises(SandboxFailed, match="more than 1,000 bytes"):
            await sandbox.read("/dev/zero", max_bytes=1000)
        missing = await sandbox.run(["no-such-program"], seconds=60.0)
        assert (missing.code, missing.output) == (
            1,
            b"no-such-program: No such file or directory\n",
        )


@needs_sandbox
@pytest.mark.usefixtures("way")
async def test_it_reaches_the_one_address_and_keeps_many_clients_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ask = (
        "import socket, sys\n"
        "for name in 'ab':\n"
        f"    with socket.create_connection(('127.0.0.1', {port})) as asking:\n"
        "        asking.sendall(name.encode() + b'\\n')\n"
        "        print(asking.makefile().read(), end='')\n"
    )
    async with server:
        async with open_sandbox(SandboxSpec(address=f"127.0.0.1:{port}")) as sandbox:
            outcome = await sandbox.run(["python3", "-c", ask], seconds=60.0)
        assert outcome.output == b"heard a\nheard b\n"
        async with open_sandbox(SandboxSpec()) as sandbox:  # the control
            outcome = await sandbox.run(["python3", "-c", ask], seconds=60.0)
        assert b"ConnectionRefusedError" in outcome.output


@pytest.fixture
def lower(way: str) -> Iterator[Path]:
    """A folder of the user who makes the sandbox, where that user may look."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "etc").mkdir()
        (folder / "etc" / "motd").write_text("hello")
        (folder / "etc" / "motd").chmod(0o600)
        if way == WAYS[1] and os.geteuid() == 0:
            for path in (folder, folder / "etc", folder / "etc" / "motd"):
                os.chown(path, USER, USER)
        yield folder


@needs_sandbox
async def test_a_folder_below_the_root_stays_as_it_is(lower: Path) -> None:
    spec = SandboxSpec(root=str(lower), readable=("/usr", "/bin", "/lib", "/lib64"))
    async with open_sandbox(spec) as sandbox:
        change = "cat /etc/motd; echo changed > /etc/motd; rm -r /etc; mkdir /etc; ls /etc"
        assert await text_of(sandbox, change) == "hello"
        assert await sandbox.list("/etc") == []
    assert (lower / "etc" / "motd").read_text() == "hello"
    assert os.listdir(lower) == ["etc"]


@needs_sandbox
async def test_links_of_a_root_lead_nowhere_else(lower: Path, tmp_path: Path) -> None:
    for name in ("dev", "tmp", "sandbox", "usr"):
        (lower / name).symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"this machine allows none .*File exists"):
        async with open_sandbox(SandboxSpec(root=str(lower), readable=("/usr",))):
            pytest.fail("it started")
    assert os.listdir(tmp_path) == []


OPENS = """
import asyncio, sys
from trinity.runtime.process.sandbox import SandboxSpec, open_sandbox
async def main():
    async with open_sandbox(SandboxSpec()) as sandbox:
        print(sandbox._worker.process.pid, flush=True)
        await sandbox.run(["bash", "-c", "setsid sleep NUMBER & sleep NUMBER"], seconds=999)
asyncio.run(main())
"""
PLAIN = """
import subprocess
subprocess.Popen(["sleep", "NUMBER"], start_new_session=True, stdout=subprocess.DEVNULL)
print("open", flush=True)
input()
"""


NUMBER = str(10**8 + os.getpid())
"""Seconds, by which this process's sleepers are found."""


def sleepers() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if NUMBER in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


@needs_sandbox
async def test_all_of_it_ends_with_its_explorer_even_when_that_is_killed(tmp_path: Path) -> None:
    opener = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OPENS.replace("NUMBER", NUMBER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert opener.stdout is not None
    pid = int(await opener.stdout.readline())
    while len(sleepers()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    opener.kill()
    await opener.communicate()
    while sleepers() or cgroups(pid) or os.listdir(tmp_path):  # noqa: ASYNC110  # the kernel ends them in its time
        await asyncio.sleep(0.05)


async def test_control_a_plain_process_outlives_its_explorer() -> None:
    opener = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PLAIN.replace("NUMBER", NUMBER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert opener.stdout is not None
    await opener.stdout.readline()
    opener.kill()
    await opener.communicate()
    [left] = sleepers()
    left.kill()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named docker that writes down its arguments and starts what the container would.

    No engine runs here, so this is not Docker: it shows what Docker is asked for.
    """
    programs, work = tmp_path / "programs", tmp_path / "work"
    programs.mkdir()
    work.mkdir()
    docker = programs / "docker"
    docker.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(tmp_path / 'asked')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        f"os.chdir({str(work)!r})\n"
        "at = sys.argv.index('--entrypoint')\n"
        "os.execvp(sys.argv[at + 1], [sys.argv[at + 1], *sys.argv[at + 3:]])\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(
        sandbox_module, "_native_command", lambda *_: ["sh", "-c", "echo none here >&2; exit 97"]
    )
    return tmp_path / "asked"


async def test_an_engine_of_containers_serves_where_the_machine_makes_none(engine: Path) -> None:
    spec = SandboxSpec(image="python:3.12-slim", memory_bytes=MIB, disk_bytes=MIB, readable=("/a",))
    async with open_sandbox(spec) as sandbox:
        await sandbox.write("a/b", b"text")
        assert (await sandbox.list(), await sandbox.read("a/b")) == (["a/"], b"text")
        outcome = await sandbox.run(["sh", "-c", "cat a/b; exit 3"], seconds=60.0)
        assert outcome == CommandOutcome(code=3, output=b"text", num_left_out=0, is_late=False)
        late = await sandbox.run(["sleep", "600"], seconds=0.5)
        assert late.is_late
    asked = json.loads(engine.read_text())  # noqa: ASYNC240
    options = dict(pairwise(asked))
    assert asked[:3] == ["run", "--rm", "--interactive"]
    assert options["--network"] == "none" and "--read-only" in asked
    assert options["--cap-drop"] == "ALL" and options["--security-opt"] == "no-new-privileges"
    assert options["--memory"] == options["--memory-swap"] == str(2 * MIB)
    assert options["--pids-limit"] == "256" and options["--user"] == "61000:61000"
    assert "/sandbox:exec,mode=1777,size=1048576" in asked and "/a:/a:ro" in asked
    assert options["python3"] == "python:3.12-slim"


async def test_a_container_sends_its_listening_socket_for_the_address(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in shares this machine's network, so the port inside must be another one."""
    del engine

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        inside = taken.getsockname()[1]
    monkeypatch.setattr(sandbox_module, "_port", lambda _: inside)
    ask = f"import socket; print(socket.create_connection(('127.0.0.1', {inside})).recv(9))"
    spec = SandboxSpec(image="python", address=f"127.0.0.1:{port}")
    async with server, open_sandbox(spec) as sandbox:
        outcome = await sandbox.run([sys.executable, "-c", ask], seconds=60.0)
    assert outcome.output == b"b'heard'\n"


REFUSALS = [
    ("", "", r"allows none \(none here\), and neither docker nor podman is on the PATH"),
    ("exit 1", "", r"no image for docker is given \(`image`\)"),
    ("echo no daemon >&2; exit 1", "python", "docker refuses: no daemon"),
]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("script", "image", "words"), REFUSALS)
async def test_where_neither_makes_one_a_sentence_says_why(
    script: str, image: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "programs" / "docker"
    docker.unlink(missing_ok=True)
    if script:
        docker.write_text(f"#!/bin/sh\n{script}\n")
        docker.chmod(0o755)
    else:
        monkeypatch.setattr(sandbox_module, "_ENGINES", ("no-such-engine",))
    with pytest.raises(UserError, match=words):
        async with open_sandbox(SandboxSpec(image=image)):
            pytest.fail("it started")


@pytest.mark.skipif(os.geteuid() != 0, reason="this user is not root")
async def test_no_sandbox_has_the_rights_of_the_machines_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = sandbox_module._native_command
    drop = ["setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid"]
    monkeypatch.setattr(sandbox_module, "_native_command", lambda *given: [*drop, *made(*given)])
    monkeypatch.setattr(sandbox_module, "_ENGINES", ())
    with pytest.raises(UserError, match=r"root may not map users"):
        async with open_sandbox(SandboxSpec()):
            pytest.fail("it started")


async def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the sandbox's root .*/none is no folder"):
        async with open_sandbox(SandboxSpec(root=str(tmp_path / "none"))):
            pytest.fail("it started")


MEMBERSHIPS = [
    ("4:memory:/a\n0::/b", "memory/a", "memory.limit_in_bytes"),
    ("4:cpu:/a\n0::/b", "b", "memory.max"),
]


@as_subtests(("memberships", "parent", "limit"), MEMBERSHIPS)
def test_cgroups_of_both_kinds_limit_memory(
    memberships: str, parent: str, limit: str, tmp_path: Path
) -> None:
    """The files are ordinary ones: this machine has the first kind alone."""
    (tmp_path / parent).mkdir(parents=True)
    made = join_cgroup(7, 1000, memberships, tmp_path)
    assert made is not None and made.parent == tmp_path / parent
    assert ((made / limit).read_text(), (made / "cgroup.procs").read_text()) == ("1000", "7")
    assert join_cgroup(7, 1000, "0::/none", tmp_path) is None
