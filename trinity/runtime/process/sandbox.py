"""A sandbox for one run: files that die with it, limits, and no network but one address.

    async with open_sandbox(SandboxSpec(address="127.0.0.1:8000")) as sandbox:
        await sandbox.write("a.py", b"print(1 + 1)")
        outcome = await sandbox.run(["python3", "a.py"], seconds=60)

It is made of namespaces (`sandbox_root`). Where the machine allows none, Docker or Podman runs
`image` with the same program inside (`sandbox_server`).
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trinity.errors import UserError
from trinity.runtime.process import sandbox_server
from trinity.runtime.process.box import BOX_USER
from trinity.runtime.process.child_process import OWN_IDENTITY
from trinity.runtime.process.sandbox_root import WORK
from trinity.runtime.process.worker import MAX_LINE_BYTES, Worker, WorkerFailed

MAX_OUTPUT_BYTES = 64 * 1024
MAX_FILE_BYTES = 1024**2
MAX_CONNECTIONS = 64
START_SECONDS = 120.0
FILE_SECONDS = 30.0
ENDING_SECONDS = 10.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGE = Path(__file__).resolve().parents[3]
_MAKE = (
    f"import sys; sys.path.append({str(_PACKAGE)!r}); "
    "from trinity.runtime.process.sandbox_root import main; main(sys.argv[1])"
)
_ENGINES = ("docker", "podman")
_SERVER = str(Path(sandbox_server.__file__).resolve())
_OFFERS = "offers"
"""A socket of this side, to which the sandbox sends the one that listens inside."""
_PIECE = 65_536


class SandboxFailed(RuntimeError):
    """Raised when a sandbox has ended, or a file of it cannot be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The parts of this machine that a sandbox gets.

    Written files lie in memory. Where a cgroup may be made, both are counted together; elsewhere
    each process has the limit of memory.
    """

    root: str = ""
    """A folder with the files of a system, which stays as it is; else this machine's programs."""
    image: str = ""
    """An image of Docker or Podman with Python, for machines that allow no namespaces."""
    memory_bytes: int = 2 * 1024**3
    disk_bytes: int = 1024**3
    max_processes: int = 256
    """Threads count."""
    readable: tuple[str, ...] = ()
    """Files and folders of this machine that can be read."""
    address: str = ""
    """`host:port` of the only server that can be reached, at 127.0.0.1 and this port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """The end of a command: its exit code, negative for a signal, and the end of its output."""

    code: int
    output: bytes
    num_left_out: int
    is_late: bool
    """It was killed, with all that runs in the sandbox, because its time was over."""


class Sandbox:
    """Runs commands and keeps files; requests are carried out one by one.

    Paths are those of the sandbox, relative ones below its folder for work.
    """

    def __init__(self, worker: Worker, spec: SandboxSpec) -> None:
        self._worker, self._spec, self._lock = worker, spec, asyncio.Lock()

    @property
    def has_ended(self) -> bool:
        """True once its process is gone."""
        return self._worker.process.returncode is not None

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        max_bytes: int = MAX_OUTPUT_BYTES,
        ends_others: bool = False,
    ) -> CommandOutcome:
        """Runs a command to its end; both of its outputs are one.

        Its background processes go on unless `ends_others`. Raises: SandboxFailed if the sandbox
        ends.
        """
        own = {"PATH": _search_path(self._spec), "HOME": WORK, "LANG": "C.UTF-8"}
        answer = await self._ask(
            "run",
            command=list(command),
            environment={**own, **(environment or {})},
            seconds=seconds,
            max_bytes=max_bytes,
            ends_others=ends_others,
        )
        return CommandOutcome(
            code=answer["code"],
            output=base64.b64decode(answer["output"]),
            num_left_out=answer["left_out"],
            is_late=answer["is_late"],
        )

    async def read(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Returns a file's content. Raises: SandboxFailed, also for a larger one."""
        answer = await self._ask_about_file("read", path, max_bytes=max_bytes)
        if answer["left_out"]:
            raise SandboxFailed(f"{path}: it has more than {max_bytes:,} bytes")
        return base64.b64decode(answer["output"])

    async def write(self, path: str, content: bytes) -> None:
        """Makes or replaces a file, and the folders above it. Raises: SandboxFailed."""
        await self._ask_about_file("write", path, content=base64.b64encode(content).decode())

    async def list(self, path: str = ".") -> list[str]:
        """Returns the names in a folder, sorted; those of folders end with `/`.

        Raises: SandboxFailed.
        """
        answer = await self._ask_about_file("list", path)
        return base64.b64decode(answer["output"]).decode(errors="replace").splitlines()

    async def _ask_about_file(self, kind: str, path: str, **fields: Any) -> dict[str, Any]:
        usual = {"seconds": FILE_SECONDS, "max_bytes": MAX_FILE_BYTES, "ends_others": False}
        answer = await self._ask(kind, **{**usual, "path": path, **fields})
        if answer["code"]:
            said = base64.b64decode(answer["output"]).decode(errors="replace").strip()
            raise SandboxFailed(said or f"{path}: it took longer than {FILE_SECONDS:g} s")
        return answer

    async def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        async with self._lock:
            self._worker.ask({"kind": kind, **fields})
            try:
                return await self._worker.read(fields["seconds"] + FILE_SECONDS)
            except WorkerFailed as error:
                raise SandboxFailed(
                    f"the sandbox ended, perhaps for want of memory: {error}"
                ) from error


@contextlib.asynccontextmanager
async def open_sandbox(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Starts a sandbox, which ends with the block and with this process, however that ends.

    Raises: UserError if neither this machine nor an engine of containers makes one.
    """
    if spec.root and not await asyncio.to_thread(os.path.isdir, spec.root):
        raise UserError(f"the sandbox's root {spec.root} is no folder")
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trinity-sandbox-")))
        offers = stack.enter_context(_listening(folder))
        try:
            worker = await _start(_native_command(spec, folder), {"PATH": os.defpath})
        except SandboxFailed as refusal:
            worker = await _start_container(spec, folder, str(refusal))
        stack.push_async_callback(_end, worker)
        if spec.address:
            await stack.enter_async_context(_forwarding(_offered(offers), spec.address))
        yield Sandbox(worker, spec)


def _listening(folder: Path) -> socket.socket:
    """Returns the socket to which a sandbox, another user there, sends its own."""
    offers = socket.socket(socket.AF_UNIX)
    offers.bind(str(folder / _OFFERS))
    folder.chmod(0o711)
    (folder / _OFFERS).chmod(0o666)
    offers.listen()
    return offers


def _native_command(spec: SandboxSpec, folder: Path) -> list[str]:
    given = {"port": _port(spec), "path": str(folder / _OFFERS), **asdict(spec)}
    given["readable"] = [*_python_folders(spec), *spec.readable]
    return [sys.executable, "-I", "-S", "-c", _MAKE, json.dumps(given)]


def _python_folders(spec: SandboxSpec) -> tuple[str, ...]:
    return () if spec.root else tuple(dict.fromkeys((sys.prefix, sys.base_prefix)))


def _search_path(spec: SandboxSpec) -> str:
    return ":".join([*(f"{folder}/bin" for folder in _python_folders(spec)), _PATH])


def _port(spec: SandboxSpec) -> int:
    return int(spec.address.rpartition(":")[2] or 0)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> Worker:
    """Starts a sandbox. Raises: SandboxFailed with the last line that it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=MAX_LINE_BYTES,
        env=environment,
        start_new_session=True,
    )
    worker = Worker(process)
    try:
        await worker.read(START_SECONDS)
        return worker
    except BaseException as error:
        _terminate(worker)
        try:
            if not isinstance(error, WorkerFailed):
                raise
            assert process.stderr is not None
            lines = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
            raise SandboxFailed(lines[-1] if lines else str(error)) from error
        finally:
            await worker.kill()


async def _start_container(spec: SandboxSpec, folder: Path, refusal: str) -> Worker:
    """Starts a sandbox in a container.

    Raises: UserError with the reasons of this machine and of the engine.
    """
    engine = next(filter(None, map(shutil.which, _ENGINES)), None)
    if engine is None:
        why = "neither docker nor podman is on the PATH"
    elif not spec.image:
        why = f"no image for {Path(engine).name} is given (`image`)"
    else:
        command = container_command(spec, folder, engine)
        wrapped = OWN_IDENTITY.command(command, death_signal=signal.SIGTERM)
        try:
            return await _start(wrapped, os.environ)
        except SandboxFailed as error:
            why = f"{Path(engine).name} refuses: {error}"
    raise UserError(f"there is no sandbox here: this machine allows none ({refusal}), and {why}")


def container_command(spec: SandboxSpec, folder: Path, engine: str) -> list[str]:
    """Returns the command of a container with the limits of a sandbox, without rights."""
    start = json.dumps({"port": _port(spec), "path": str(folder / _OFFERS)})
    memory = str(spec.memory_bytes + spec.disk_bytes)
    shown = [f"{_SERVER}:{_SERVER}", f"{folder}:{folder}", *(f"{p}:{p}" for p in spec.readable)]
    return [
        *(engine, "run", "--rm", "--interactive", "--network", "none", "--read-only"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{BOX_USER}:{BOX_USER}", "--hostname", "sandbox", "--workdir", WORK),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(spec.max_processes)),
        *("--tmpfs", f"{WORK}:exec,mode=1777,size={spec.disk_bytes}"),
        *("--tmpfs", f"/tmp:exec,mode=1777,size={spec.disk_bytes}"),
        *(part for path in shown for part in ("--volume", f"{path}:ro")),
        *("--entrypoint", "python3", spec.image, "-I", "-S", _SERVER, start),
    ]


async def _end(worker: Worker) -> None:
    """Ends a sandbox, which then removes its cgroup or its container."""
    _terminate(worker)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await worker.process.wait()
    finally:
        await worker.kill()


def _terminate(worker: Worker) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.process.terminate()


def _offered(offers: socket.socket) -> socket.socket:
    """Returns the listening socket that the sandbox has sent, the last one if it began twice."""
    offers.setblocking(False)
    found: list[int] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            with offers.accept()[0] as sender:
                _, descriptors, *_ = socket.recv_fds(sender, 1, 1)
                found += descriptors
    for descriptor in found[:-1]:
        os.close(descriptor)
    return socket.socket(fileno=found[-1])


@contextlib.asynccontextmanager
async def _forwarding(listening: socket.socket, address: str) -> AsyncIterator[None]:
    """Connects each client of a socket with the address, a bounded number at a time."""
    host, _, port = address.rpartition(":")
    joined: set[asyncio.Task[None]] = set()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        joined.add(task)
        try:
            if len(joined) <= MAX_CONNECTIONS:
                with contextlib.suppress(OSError):
                    far_reader, far_writer = await asyncio.open_connection(host, int(port))
                    with contextlib.closing(far_writer):
                        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            joined.discard(task)
            writer.close()

    server = await asyncio.start_server(join, sock=listening)
    try:
        yield
    finally:
        server.close()
        for task in joined:
            task.cancel()
        await asyncio.gather(*joined, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
