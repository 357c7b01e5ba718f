"""OpenEnv 0.10: serves an environment on loopback, or reaches one, and plays its episodes."""

import asyncio
import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import uvicorn
import yaml
from openenv import GenericEnvClient

from .program import CannotLoad, module_of, shown

MANIFEST = "openenv.yaml"
ANSWER_SECONDS = 30.0
ROWS = 1_000
BESIDE = ("done", "reward", "metadata")
TOOLS = ("Action", "CallToolAction", "ListToolsAction")


class OpenEnvProgram:
    """One environment; each of its episodes is a session."""

    def __init__(self) -> None:
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sessions: dict[str, GenericEnvClient] = {}

    async def load(self, path: str, arguments: dict[str, Any]) -> None:
        """Starts the environment's server, unless it runs elsewhere. Raises: CannotLoad."""
        self._path = path
        self._resets = _resets(arguments)
        self._address = path if "://" in path else await self._serve(path)
        try:
            async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as client:
                response = await client.get(f"{self._address}/schema")
                self._schema = response.raise_for_status().json()["action"]
        except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
            raise CannotLoad(f"{path} does not give its schema: {shown(error)}") from error
        if self._schema.get("title") in TOOLS:
            raise CannotLoad(
                f"the actions of {path} are calls of MCP tools, which this workflow does not make"
            )

    async def notes(self) -> list[str]:
        """Returns sentences about the needs of a run: network, logins, programs."""
        if not self._path.startswith("https://"):
            return []
        return [f"its episodes are played at {self._path}: that needs the network"]

    async def rows(self, count: int) -> list[dict[str, Any]]:
        """Returns the next rows: arguments of `reset`."""
        taken, self._resets = self._resets[:count], self._resets[count:]
        return taken

    async def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of an action."""
        return {**self._schema}

    async def reset(self, session: str, row: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode; returns the observation."""
        client = self._sessions[session] = GenericEnvClient(base_url=self._address)
        await client.connect()
        return _seen(await client.reset(**row))

    async def step(self, session: str, answer: str) -> dict[str, Any]:
        """Takes an answer of the model as an action; returns the observation."""
        action = self._action(answer)
        if action is None:
            return {"text": "", "reward": 0.0, "is_done": True, "is_action": False}
        return _seen(await self._sessions[session].step(action))

    async def end(self, session: str) -> None:
        """Ends an episode."""
        if (client := self._sessions.pop(session, None)) is not None:
            await client.close()

    async def close(self) -> None:
        """Ends all episodes and the server."""
        for session in list(self._sessions):
            await self.end(session)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _serve(self, path: str) -> str:
        try:
            app = _app(path)
        except CannotLoad:
            raise
        except Exception as error:  # an environment's code may raise anything
            raise CannotLoad(f"OpenEnv cannot load {path}: {shown(error)}") from error
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            if self._serving.done():
                raise CannotLoad(f"the server of {path} does not start")
            await asyncio.sleep(0.05)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def _action(self, answer: str) -> dict[str, Any] | None:
        """Returns an answer as an action: an object, or the value of its only field."""
        text = answer.strip().removeprefix("```json").strip("`").strip()
        values: list[Any] = [text]
        with contextlib.suppress(ValueError):
            values.append(json.loads(text))
        names = self._schema.get("required") or [
            name for name in self._schema.get("properties", {}) if name not in BESIDE
        ]
        tries = [value for value in values if isinstance(value, dict)]
        if len(names) == 1:
            tries += [{names[0]: value} for value in values]
        for action in tries:
            if jsonschema.Draft202012Validator(self._schema).is_valid(action):
                return action
        return None


def _app(path: str) -> Any:
    """Returns the application of a file, or the one in the manifest of a folder."""
    named = "app"
    module = module_of(path)
    if Path(path).is_dir():
        manifest = Path(path, MANIFEST)
        values = yaml.safe_load(manifest.read_text()) if manifest.is_file() else {}
        if "app" not in values:
            raise CannotLoad(
                f"{path} has no {MANIFEST} with `app`: give the folder of an environment, or a file"
            )
        where, _, named = str(values["app"]).partition(":")
        module = f"{module}.{where}"
    elif not Path(path).is_absolute():
        raise CannotLoad(
            f"{path} is no file or folder here: clone it, or give the address where it runs, such "
            "as https://OWNER-NAME.hf.space"
        )
    app = getattr(importlib.import_module(module), named, None)
    if app is None:
        raise CannotLoad(f"{path} has no `{named}`: make it with OpenEnv's `create_app`")
    return app


def _resets(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    resets, number = arguments.get("resets"), arguments.get("num_tasks")
    if resets is None:
        if not isinstance(number, int) or number < 1:
            raise CannotLoad(
                "an environment of OpenEnv has no task set: give `workflow_args.num_tasks`, which "
                "are as many seeds, or `resets`, a list of arguments of its `reset`"
            )
        first = arguments.get("first_seed") or 0
        if not isinstance(first, int) or first < 0:
            raise CannotLoad("`workflow_args.first_seed` is no whole number from 0 on")
        return [{"seed": first + place} for place in range(number)]
    if not isinstance(resets, list) or not all(isinstance(each, dict) for each in resets):
        raise CannotLoad("`workflow_args.resets` is no list of arguments of `reset`")
    return resets if number is None else resets[:number]


def _seen(result: Any) -> dict[str, Any]:
    """Returns an observation as text: that of its only field, else all of it as JSON."""
    seen = {name: value for name, value in result.observation.items() if name not in BESIDE}
    only = next(iter(seen.values())) if len(seen) == 1 else None
    return {
        "text": only if isinstance(only, str) else json.dumps(seen, ensure_ascii=False),
        "reward": float(result.reward or 0.0),
        "is_done": bool(result.done),
        "is_action": True,
    }
