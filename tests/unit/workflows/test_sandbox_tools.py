"""A model's calls of tools are answered in a sandbox; its mistakes are texts for it."""

import json
from typing import Any

import pytest

from tests.unit.runtime.test_sandbox import needs_sandbox
from trinity.runtime.process.sandbox import SandboxFailed, SandboxSpec, open_sandbox
from trinity.workflows.sandbox_tools import SandboxTools

CALLS = [
    ("write_file", {"path": "a/b.txt", "content": "hello"}, "written"),
    ("read_file", {"path": "a/b.txt"}, "hello"),
    ("list_files", {"path": "."}, "a/"),
    ("bash", {"script": "cat a/b.txt"}, "hello"),
    ("bash", {"script": "echo no >&2; exit 3"}, "no\n\nexit code 3"),
    ("python", {"code": "print(len(open('a/b.txt').read()))"}, "5\n"),
    ("python", {"code": "import time; time.sleep(600)"}, "\nerror: killed after 10 s"),
    ("read_file", {"path": "none"}, "error: none: No such file or directory"),
    ("read_file", {}, "error: 'path' is missing"),
    ("fly", {}, "error: there is no tool fly"),
]


@needs_sandbox
async def test_calls_are_answered_one_after_the_other_in_one_sandbox() -> None:
    async with open_sandbox(SandboxSpec()) as sandbox:
        tools = SandboxTools(sandbox, seconds=10.0)
        for name, arguments, answer in CALLS:
            assert await tools.answer(name, json.dumps(arguments)) == answer
        for text in ("[1]", "{"):
            assert "error: the arguments are no JSON object" in await tools.answer("bash", text)
        flood = await tools.answer("bash", json.dumps({"script": "head -c 100000 /dev/zero"}))
        assert flood.startswith("(34,464 bytes are left out here)")


@needs_sandbox
async def test_a_sandbox_that_has_ended_is_an_error_of_the_run() -> None:
    async with open_sandbox(SandboxSpec()) as sandbox:
        tools = SandboxTools(sandbox)
        sandbox._worker.process.kill()
        with pytest.raises(SandboxFailed, match="the sandbox ended"):
            await tools.answer("bash", '{"script": "true"}')


def test_definitions_are_those_of_openais_clients() -> None:
    given: Any = SandboxTools.definitions
    names = [tool["function"]["name"] for tool in given]
    assert names == ["python", "bash", "read_file", "write_file", "list_files"]
    assert given[3]["function"]["parameters"]["required"] == ["path", "content"]
