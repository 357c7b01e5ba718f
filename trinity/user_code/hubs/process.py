"""The process of a hub, for any number of calls at a time; the runs of a task set share one.

Its lines and calls are those of `trinity.runtime.process`; the other side is `hub_programs`.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

from trinity.runtime.process.calls import OpenCalls
from trinity.runtime.process.worker import NotAnAnswer, Worker, WorkerFailed
from trinity.user_code.hubs.place import HubPlace, hub_python

SAME_VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""Variables that a hub shares with the service that starts it, whose other ones may be secrets."""
FOLDER = Path(__file__).parent
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import hub_programs.program; sys.path.pop(0); "
    "hub_programs.program.main(*sys.argv[2:])"
)
LOAD_SECONDS = 300.0
"""Time to import a hub and a task set, on a machine that does much else."""
PING_SECONDS = 20.0
"""Time for an answer that needs no work; a process that takes longer hangs."""
IDLE_SECONDS = 300.0
KEPT_BYTES = 8192
"""The end of a hub's output."""
SHOWN_CHARACTERS = 500


class HubFailed(RuntimeError):
    """A hub reports an error, or its process ended, hangs, or answers something else."""


class HubProcess:
    """One process of a hub, with one task set.

    hub = await HubProcess.start(place)
    rows = await hub.call("rows", count=500)
    await hub.kill()
    """

    def __init__(self, place: HubPlace, worker: Worker) -> None:
        self._place = place
        self._worker = worker
        self._calls = OpenCalls(worker.write, HubFailed)
        self._said = bytearray()
        self._keeping = asyncio.create_task(self._keep_said())
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, place: HubPlace, python: Path | None = None) -> Self:
        """Starts it and waits until the task set is loaded.

        Raises: UserError if the hub has no environment here or cannot load the task set,
            HubFailed.
        """
        python = python or hub_python(place.hub)
        channel = FOLDER.parents[1] / "runtime" / "process" / "channel.py"
        command = [str(python), "-P", "-s", "-c", START, str(FOLDER), place.hub, str(channel)]
        given = {name: os.environ[name] for name in SAME_VARIABLES if name in os.environ}
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        worker = await Worker.execute(command, env={**given, "PATH": path}, stderr=subprocess.PIPE)
        hub = cls(place, worker)
        try:
            worker.ask({})
            await hub.answer("load", LOAD_SECONDS, path=place.path, arguments=place.arguments)
        except BaseException:
            await hub.kill()
            raise
        return hub

    @property
    def is_alive(self) -> bool:
        """False once it does not answer any more."""
        return not self._reading.done()

    async def call(self, function: str, **values: object) -> Any:
        """Returns the value of a function of the program; a cancelled call ends there, too.

        Raises: UserError for a mistake of the user's, HubFailed.
        """
        if not self.is_alive:
            raise HubFailed(f"{self._name} has ended{self._quoted}")
        return await asyncio.wrap_future(self._calls.call(function, None, **values))

    async def answer(self, function: str, limit_seconds: float, **values: object) -> Any:
        """Calls a function that has so much time. Raises: as `call`."""
        try:
            async with asyncio.timeout(limit_seconds):
                return await self.call(function, **values)
        except TimeoutError:
            raise HubFailed(
                f"{self._name} did not answer `{function}` in {limit_seconds:g} s{self._quoted}"
            ) from None

    async def kill(self) -> None:
        """Ends the process and all open calls."""
        self._reading.cancel()
        self._keeping.cancel()
        await self._worker.kill()
        self._calls.fail(HubFailed(f"{self._name} was ended{self._quoted}"))

    async def _read(self) -> None:
        """Passes answers on until the process ends or one is none."""
        try:
            while True:
                message = await self._worker.read()
                try:
                    self._calls.receive(message)
                except (LookupError, TypeError) as error:
                    raise NotAnAnswer(f"{message!r:.80} is no answer") from error
        except NotAnAnswer:
            reason = "wrote a line that is no answer"
        except WorkerFailed as error:
            reason = str(error).removeprefix("the process that calls it ")
            await asyncio.wait([self._keeping], timeout=1.0)
        await self._worker.kill()
        self._calls.fail(HubFailed(f"{self._name} {reason}{self._quoted}"))

    async def _keep_said(self) -> None:
        output = self._worker.process.stderr
        assert output is not None
        while chunk := await output.read(KEPT_BYTES):
            self._said += chunk
            del self._said[:-KEPT_BYTES]

    @property
    def _name(self) -> str:
        return f"the process of {self._place.hub} for {self._place.path}"

    @property
    def _quoted(self) -> str:
        text = self._said.decode(errors="replace").strip()
        return f"; it said last: {text[-SHOWN_CHARACTERS:]}" if text else "; it printed nothing"


class _SharedProcess:
    """The process that runs of a task set share; it ends some time after the last of them."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._hub: HubProcess | None = None
        self._num_runs = 0
        self._ending: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, place: HubPlace) -> AsyncIterator[HubProcess]:
        """Gives the process to a run. One that no longer answers after a failed run is killed."""
        self._num_runs += 1
        if self._ending is not None:
            self._ending.cancel()
        try:
            async with self._lock:
                if self._hub is None or not self._hub.is_alive:
                    self._hub = await HubProcess.start(place)
            hub = self._hub
            try:
                yield hub
            except BaseException:
                self._begin(lambda: self._check(hub))
                raise
        finally:
            self._num_runs -= 1
            if not self._num_runs:
                loop = asyncio.get_running_loop()
                self._ending = loop.call_later(IDLE_SECONDS, self._begin, self.close)

    async def close(self) -> None:
        """Ends the process and its timer."""
        if self._ending is not None:
            self._ending.cancel()
        if self._hub is not None:
            await self._hub.kill()

    async def _check(self, hub: HubProcess) -> None:
        try:
            await hub.answer("ping", PING_SECONDS)
        except HubFailed:
            await hub.kill()

    def _begin(self, work: Callable[[], Any]) -> None:
        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _SharedProcess]]" = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def shared_hub(place: HubPlace) -> AsyncIterator[HubProcess]:
    """Gives a run the process of its task set in this event loop, started if need be.

    Raises: as `HubProcess.start`.
    """
    of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
    async with of_loop.setdefault(str(place), _SharedProcess()).use(place) as hub:
        yield hub


async def close_hubs() -> None:
    """Ends the processes of this event loop."""
    for shared in _shared.pop(asyncio.get_running_loop(), {}).values():
        with contextlib.suppress(ProcessLookupError):
            await shared.close()


def texts(answer: Any) -> Sequence[str]:
    """Returns a hub's list of texts. Raises: HubFailed."""
    if not isinstance(answer, list) or not all(isinstance(text, str) for text in answer):
        raise HubFailed(f"a hub answered {answer!r:.80}, which is no list of texts")
    return answer


def numbers(answer: Any) -> Mapping[str, float]:
    """Returns a hub's numbers by name. Raises: HubFailed."""
    is_right = isinstance(answer, dict) and all(
        isinstance(value, int | float) and abs(value) < float("inf") for value in answer.values()
    )
    if not is_right:
        raise HubFailed(f"a hub answered {answer!r:.80}, which are no finite numbers by name")
    return {name: float(value) for name, value in answer.items()}
