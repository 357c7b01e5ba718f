"""Tools `python`, `bash` and files over a sandbox, for workflows whose model calls tools."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from trinity.config.model_code_policy import agent_commands_are_allowed
from trinity.errors import UserError
from trinity.runtime.process.sandbox import Sandbox, SandboxFailed, SandboxSpec
from trinity.types import JsonObject, JsonValue

TOOL_SECONDS = 60.0
_KINDS = {"root": str, "image": str, "memory_bytes": int, "disk_bytes": int, "max_processes": int}


def sandbox_spec(value: JsonValue, where: str) -> SandboxSpec:
    """Returns the sandbox that a setting describes: true, or some of the fields by name.

    Raises: UserError for others. In an explorer that holds credentials, also for a root, an image
        and limits above the usual ones, unless its operator lets commands of agents run anyhow.
    """
    given = {} if value is True else value
    if not isinstance(given, dict) or any(
        type(value) is not _KINDS.get(name) or (isinstance(value, int) and value < 1)
        for name, value in given.items()
    ):
        raise UserError(f"{where} is {value!r:.80}: give true, or some of {', '.join(_KINDS)}")
    usual = asdict(SandboxSpec())
    refused = [name for name, value in given.items() if not usual[name] or value > usual[name]]
    if refused and not agent_commands_are_allowed():
        raise UserError(
            f"{where}.{refused[0]} is {given[refused[0]]!r:.80}: an explorer with credentials "
            "takes no root, no image and no higher limits than the usual ones: leave it out"
        )
    return SandboxSpec(**cast(Mapping[str, Any], given))


def _tool(name: str, description: str, *arguments: str) -> JsonObject:
    properties: JsonObject = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": [*arguments]}
    function = {"name": name, "description": description, "parameters": schema}
    return cast(JsonObject, {"type": "function", "function": function})


class SandboxTools:
    """Answers a model's calls of tools in a sandbox.

    async with open_sandbox(SandboxSpec()) as sandbox:
        tools = SandboxTools(sandbox)
        response = await client.chat.completions.create(..., tools=tools.definitions)
        for call in response.choices[0].message.tool_calls or []:
            result = await tools.answer(call.function.name, call.function.arguments)
    """

    definitions: tuple[JsonObject, ...] = (
        _tool("python", "Runs a Python program; returns its output.", "code"),
        _tool("bash", "Runs a script of bash; returns its output.", "script"),
        _tool("read_file", "Returns the content of a file.", "path"),
        _tool("write_file", "Makes a file or replaces its content.", "path", "content"),
        _tool("list_files", "Returns the names in a folder.", "path"),
    )
    """The tools, as OpenAI's clients and chat templates take them."""

    def __init__(self, sandbox: Sandbox, seconds: float = TOOL_SECONDS) -> None:
        self._sandbox, self._seconds = sandbox, seconds

    async def answer(self, name: str, arguments: str) -> str:
        """Carries out a call; a model's mistakes, errors and endings are texts for it.

        Raises: SandboxFailed if the sandbox has ended.
        """
        try:
            given = json.loads(arguments or "{}")
            texts = {key: str(value) for key, value in given.items()}
            return await self._carry_out(name, texts)
        except KeyError as error:
            return f"error: {error} is missing"
        except (AttributeError, ValueError) as error:
            return f"error: the arguments are no JSON object: {error}"
        except SandboxFailed as error:
            if self._sandbox.has_ended:
                raise
            return f"error: {error}"

    async def _carry_out(self, name: str, given: dict[str, str]) -> str:
        match name:
            case "python":
                return await self._run("python3", "-c", given["code"])
            case "bash":
                return await self._run("bash", "-c", given["script"])
            case "read_file":
                return (await self._sandbox.read(given["path"])).decode(errors="replace")
            case "write_file":
                await self._sandbox.write(given["path"], given["content"].encode())
                return "written"
            case "list_files":
                return "\n".join(await self._sandbox.list(given.get("path", ".")))
        return f"error: there is no tool {name}"

    async def _run(self, *command: str) -> str:
        outcome = await self._sandbox.run(command, seconds=self._seconds)
        text = outcome.output.decode(errors="replace")
        if outcome.num_left_out:
            text = f"({outcome.num_left_out:,} bytes are left out here)\n{text}"
        if outcome.is_late:
            return f"{text}\nerror: killed after {self._seconds:g} s"
        return f"{text}\nexit code {outcome.code}" if outcome.code else text
