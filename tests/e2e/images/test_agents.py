"""Agents as their makers ship them, on the address of a run. `make check-agents` installs them."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.explorer.dialects.asking import Asked
from tests.integration.explorer.dialects.conftest import asked  # noqa: F401

AGENTS = Path(os.environ.get("TRINITY_TEST_AGENTS", "build/agents")).absolute()
SECONDS = 900.0
WORD = "forty-two"
SHELLS: dict[str, dict[str, Any]] = {
    "Bash": {"command": f"echo {WORD}", "description": "says it"},
    "bash": {"command": f"echo {WORD}"},
    "exec_command": {"cmd": f"echo {WORD}"},
    "echo": {"text": WORD},
}
"""Tools of the agents, and how each says the word."""
CODEX = """model = "m"
model_provider = "run"
[model_providers.run]
name = "run"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
OPENAI_SDK = """
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)
@function_tool
def echo(text: str) -> str:
    "Says it."
    return text
agent = Agent(name="a", instructions="Say it.", tools=[echo], model="m")
print(Runner.run_sync(agent, "Say it.").final_output)
"""
LANGCHAIN = """
from langchain.agents import create_agent
from langchain.tools import tool
from {module} import {model}
@tool
def echo(text: str) -> str:
    "Says it."
    return text
agent = create_agent({model}(model="m"), [echo])
print(agent.invoke({{"messages": [("user", "Say it.")]}})["messages"][-1].content)
"""
MINI = """
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
model = LitellmModel(model_name="openai/m", cost_tracking="ignore_errors")
words = {"system_template": "Say it.", "instance_template": "{{task}}"}
agent = DefaultAgent(model, LocalEnvironment(), **words, step_limit=2)
print(agent.run("Say it."), agent.messages)
"""


def shell_answer(prompt: str) -> str:
    """Calls the agent's shell, then repeats what came back."""
    messages, tools = json.loads(prompt)
    names = [tool["function"]["name"] for tool in tools]
    shell = next((name for name in SHELLS if name in names), None)
    if shell is None or messages[-1]["role"] == "tool":
        return "It was said: " + str(messages[-1]["content"])[-200:]
    call = json.dumps({"name": shell, "arguments": SHELLS[shell]})
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How an agent is started."""

    command: tuple[str, ...]
    home_file: tuple[str, str] = ("", "")


def python(code: str) -> Launch:
    return Launch(command=(str(AGENTS / "python/bin/python"), "-c", code))


LAUNCHES = {
    "Claude Code": Launch(
        command=(
            str(AGENTS / "node_modules/.bin/claude"),
            *("-p", "Say it.", "--model", "m", "--dangerously-skip-permissions"),
        )
    ),
    "Codex": Launch(
        command=(
            str(AGENTS / "node_modules/.bin/codex"),
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            "Say it.",
        ),
        home_file=(".codex/config.toml", CODEX),
    ),
    "the OpenAI agents SDK": python(OPENAI_SDK),
    "LangChain, by OpenAI's chat": python(
        LANGCHAIN.format(module="langchain_openai", model="ChatOpenAI")
    ),
    "LangChain, by Anthropic's messages": python(
        LANGCHAIN.format(module="langchain_anthropic", model="ChatAnthropic")
    ),
    "mini-swe-agent": python(MINI),
}


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", LAUNCHES)
async def test_an_agent_uses_its_tool_and_is_recorded(
    asked: Asked,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    asked.engine.answer = shell_answer
    launch, url = LAUNCHES[name], str(asked.http.base_url).rstrip("/")
    home, work = tmp_path / "home", tmp_path / "work"
    file, content = launch.home_file
    for folder in (work, (home / file).parent if file else home):
        folder.mkdir(parents=True, exist_ok=True)
    if file:
        (home / file).write_text(content.format(url=url))
    key = asked.openai.api_key
    process = await asyncio.create_subprocess_exec(
        *launch.command,
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        said, _ = await process.communicate()
    call, answer = asked.model.extract_experience_from_history()
    assert call.response_text.startswith("<tool_call>"), said.decode()
    assert WORD in answer.response_text, said.decode()
