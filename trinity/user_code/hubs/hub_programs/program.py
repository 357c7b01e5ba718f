"""Answers the calls of `trinity.user_code.hubs.process` in a hub's Python, any number at a time.

A call names a public method of the hub's program: `load` comes first, `close` at the end.
"""

import asyncio
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

Message = dict[str, Any]
CLOSE_SECONDS = 10.0
PROGRAMS = {"verifiers": "VerifiersProgram", "openenv": "OpenEnvProgram"}


class CannotLoad(Exception):
    """Raised for errors that the user can mend."""


def main(hub: str, channel_file: str) -> None:
    """Answers until the parent closes the pipe."""
    spec = importlib.util.spec_from_file_location("hub_channel", channel_file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    code = 1
    try:
        asyncio.run(_Server(module.RequestChannel()).serve(hub))
        code = 0
    except BaseException:  # the edge of the process, whose end it must not outlive
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # libraries leave threads behind that would be waited for


class _Server:
    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._open: dict[int, asyncio.Task[None]] = {}
        self._program: Any = None

    async def serve(self, hub: str) -> None:
        """Begins each call as it comes, and ends all of them with the input."""
        requests: asyncio.Queue[Message | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, requests), daemon=True).start()
        while (request := await requests.get()) is not None:
            number = request.get("call")
            if "function" in request:
                task = asyncio.create_task(self._answer(hub, request))
                self._open[request["call"]] = task
            elif number in self._open:
                self._open[number].cancel()
        for task in self._open.values():
            task.cancel()
        await asyncio.wait([asyncio.create_task(self._end())], timeout=CLOSE_SECONDS)

    def _read(self, loop: asyncio.AbstractEventLoop, requests: "asyncio.Queue[Any]") -> None:
        for request in self._channel.requests():
            loop.call_soon_threadsafe(requests.put_nowait, request)
        loop.call_soon_threadsafe(requests.put_nowait, None)

    async def _end(self) -> None:
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        if self._program is not None:
            await self._program.close()

    async def _answer(self, hub: str, request: Message) -> None:
        number, function = request.pop("call"), request.pop("function")
        del request["streams"]
        try:
            answer: Message = {"value": await self._value(hub, function, request)}
        except asyncio.CancelledError:
            answer = {"is_over": True}
        except CannotLoad as error:
            answer = {"raised": "UserError", "text": str(error)}
        except (Exception, SystemExit) as error:  # a hub's code may raise anything
            answer = {"raised": "HubFailed", "text": f"{hub}: {shown(error)}"}
        del self._open[number]
        self._channel.write({"reply": number, **answer})

    async def _value(self, hub: str, function: str, values: Message) -> Any:
        if function == "ping":
            return None
        if self._program is None:
            try:
                module = importlib.import_module(f".{hub}_program", __package__)
                self._program = getattr(module, PROGRAMS[hub])()
            except ImportError as error:
                raise CannotLoad(f"{sys.prefix} has no {hub}: {error}") from error
        return await getattr(self._program, function)(**values)


def shown(error: BaseException) -> str:
    """Returns an error with its kind, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"


def module_of(path: str) -> str:
    """Makes a file or folder of Python importable and returns its name; other names stay."""
    place = Path(path)
    if not place.is_absolute():
        return path
    if not place.exists():
        raise CannotLoad(f"there is no file or folder {path}: correct the path")
    sys.path.insert(0, str(place.parent))
    return place.stem
