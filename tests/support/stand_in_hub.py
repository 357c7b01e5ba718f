"""A hub's Python without the hub: what a row asks for, `does`, is what its episode does.

    folder/verifiers/bin/python        # a script that starts this file; `make_hub` writes it

The product's program answers the calls; only the hub's side of it is this one.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trinity.user_code.hubs.place import STAMP, lock_stamp

ROWS = [{"prompt": f"{number}+1=", "answer": str(number + 1), "does": "ask"} for number in range(7)]
FLOOD = f"{'x' * 1_000_000}\n"


def make_hub(folder: Path, hub: str) -> None:
    """Makes an environment of a hub whose Python is this one, with this file in front."""
    python = folder / hub / "bin" / "python"
    python.parent.mkdir(parents=True)
    root = Path(__file__).parents[2]
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m tests.support.stand_in_hub "$@"\n'
    )
    python.chmod(0o755)
    (folder / hub / STAMP).write_text(lock_stamp(hub))


class Program:
    """The hub's side of the calls."""

    async def load(self, path: str, arguments: dict[str, Any]) -> None:
        from hub_programs.program import CannotLoad  # type: ignore[import-not-found]

        if path == "broken":
            raise CannotLoad("it cannot load broken: SyntaxError")
        if path == "silent":
            await asyncio.Event().wait()
        if path == "gone":
            os._exit(4)
        self._rows = [] if path == "empty" else ROWS[: arguments.get("num_tasks")]
        self._tries = 0
        self._path = path

    async def notes(self) -> list[str]:
        return ["it fetches things: that needs the network"] if self._path == "fetching" else []

    async def rows(self, count: int) -> list[dict[str, Any]]:
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    async def close(self) -> None:
        _mark("closed")

    async def play(self, row: dict[str, Any], address: str, key: str, model: str) -> Any:
        rewards: dict[str, Any] = {"right": 1.0, "short": 0.25}
        answer: dict[str, Any] = {"is_ok": True, "num_agents": 1, "failures": []}
        match row["does"]:
            case "ask":
                said = await asyncio.to_thread(_ask, row, address, key, model)
                rewards["right"] = float(said == row["answer"])
            case "titles":
                await asyncio.to_thread(_ask_with_title, row, address, key, model)
            case "die":
                os.kill(os.getpid(), 9)
            case "flood":
                sys.stdout.writelines([*[FLOOD] * 50, "the end"])
                sys.stdout.flush()
                os._exit(3)
            case "hang":
                _mark(row["path"])
                time.sleep(600)  # noqa: ASYNC251  # nothing else is answered
            case "wait":
                _mark(row["path"])
                try:
                    await asyncio.Event().wait()
                finally:
                    _unmark(row["path"])
            case "rubbish":
                _channel().write(b"rubbish\n")
                _channel().flush()
                await asyncio.Event().wait()
            case "raise":
                raise KeyError("no such thing")
            case "wrong":
                return ["what"]
            case "infinite":
                rewards["right"] = float("inf")
            case "fail":
                answer |= {"is_ok": False, "failures": ["HarnessError: exited 1"]}
            case "two":
                answer["num_agents"] = 2
        return {**answer, "rewards": rewards, "metrics": {"digits": 2.0}}

    # What follows is the side of `openenv`.

    async def schema(self) -> dict[str, Any]:
        return {"required": ["answer"]}

    async def reset(self, session: str, row: dict[str, Any]) -> dict[str, Any]:
        del session
        self._row, self._tries = row, 0
        return {"text": row["prompt"], "reward": 0.0, "is_done": False, "is_action": True}

    async def step(self, session: str, answer: str) -> Any:
        del session
        self._tries += 1
        if self._row["does"] == "wrong":
            return {"text": 3}
        is_right = answer == self._row["answer"]
        return {
            "text": "no",
            "reward": is_right / self._tries,
            "is_done": is_right or answer == "?",
            "is_action": answer != "?",
        }

    async def end(self, session: str) -> None:
        _mark(f"ended-{session}")


VerifiersProgram = OpenEnvProgram = Program


def _mark(path: str) -> None:
    Path(path).touch()


def _unmark(path: str) -> None:
    Path(path).unlink()


def _ask_with_title(row: dict[str, Any], address: str, key: str, model: str) -> None:
    """Asks for a title, as agents do for themselves, and twice with a tool."""
    ask = partial(_ask, address=address, key=key, model=model)
    ask({"prompt": "a title"})
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    said = ask(row, tools=tools)
    more = [{"role": "assistant", "content": said}, {"role": "user", "content": "sure?"}]
    ask(row, more=more, tools=tools)


def _ask(
    row: dict[str, Any],
    address: str,
    key: str,
    model: str,
    more: Sequence[dict[str, str]] = (),
    **options: Any,
) -> str:
    messages = [{"role": "user", "content": row["prompt"]}, *more]
    body = {"model": model, "messages": messages, **options}
    request = urllib.request.Request(
        f"{address}/chat/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}
    )
    with contextlib.closing(urllib.request.urlopen(request)) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def _channel() -> Any:
    """Returns the file of the answers, as code that looks for it can."""
    found = (each for each in gc.get_objects() if type(each).__name__ == "RequestChannel")
    return next(found)._answers


if __name__ == "__main__":
    folder, hub, channel = sys.argv[-3:]
    sys.path.insert(0, folder)
    from hub_programs import program  # type: ignore[import-not-found]

    sys.modules[f"hub_programs.{hub}_program"] = sys.modules["__main__"]
    program.main(hub, channel)
