"""Runs veRL's agent loops and tools with the run's model.

    output = await run_agent(AgentRun(name="tool_agent", client=PolicyClient(model), ...))

They run unchanged, on an event loop in a separate thread: a blocking tool does not stop other work.
The package `verl` is imported by the first run.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trinity.errors import UserError
from trinity.plugins import plugin_dirs_from_environment
from trinity.types import Experience, FinishReason, JsonObject, JsonValue, SamplingParams
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.model import ModelWrapper

MULTI_TURN: JsonObject = {
    "enable": True,
    "max_assistant_turns": None,
    "max_user_turns": None,
    "max_parallel_calls": 1,
    "max_tool_response_length": 256,
    "tool_response_truncate_side": "middle",
    "format": "hermes",
    "tool_config_path": None,
    "function_tool_path": None,
}
"""veRL's section `multi_turn`, with its defaults."""
AGENT: JsonObject = {"default_agent_loop": "single_turn_agent", "agent_loop_config_path": None}
"""veRL's section `agent`, with its defaults."""
_JOINING = "verl.utils.tokenizer.continuous_token_wiring"
"""The module that chooses how turns are joined."""
_LENGTHS = ("max_tokens", "max_new_tokens")
_SAME = ("temperature", "top_p", "top_k", "repetition_penalty", "min_p", "stop")
"""Sampling parameters that a loop may change."""
_IGNORED = ("logprobs", *_LENGTHS)


def read_section(arguments: JsonObject, name: str, usual: JsonObject) -> JsonObject:
    """Returns a section of `workflow_args` with veRL's defaults.

    Raises: UserError for a key that veRL's loops do not know.
    """
    given = arguments.get(name) or {}
    where = f"workflow_args.{name}"
    if not isinstance(given, dict):
        raise UserError(f"{where} is {given!r}: give a section with {', '.join(usual)}")
    if unknown := sorted(given.keys() - usual.keys()):
        raise UserError(f"{where} has no {', '.join(unknown)}: it has {', '.join(usual)}")
    return {**usual, **given}


@runtime_checkable
class TransformersTokenizer(Protocol):
    """A tokenizer that is one of transformers', as veRL's loops take it."""

    @property
    def hf_tokenizer(self) -> Any:
        """The tokenizer, with the chat template of the run."""
        ...

    @property
    def template_kwargs(self) -> Mapping[str, JsonValue]:
        """Further variables of the chat template."""
        ...


class PromptTooLongError(Exception):
    """The first prompt of a run is too long; `answer` is its placeholder."""

    def __init__(self, answer: Experience) -> None:
        super().__init__("the prompt is too long")
        self.answer = answer


class PolicyClient:
    """The model of one run, called as veRL's loops call their server; it keeps the answers.

    It is called on the loop of agents, and asks the model on the model's own.
    """

    def __init__(self, model: ModelWrapper) -> None:
        self.model = model
        self.answers: list[Experience] = []

    @property
    def sampling_params(self) -> dict[str, Any]:
        """The sampling of the run, which a loop passes on or changes."""
        return {**_sampling_of(self.model.sampling), "logprobs": True}

    async def generate(
        self,
        request_id: str,  # noqa: ARG002  # veRL's signature
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        **others: Any,
    ) -> Any:
        """Continues tokens; returns veRL's `TokenOutput`.

        Raises: UserError for pictures and for sampling that cannot be given here,
            PromptTooLongError for a first prompt that is too long.
        """
        from verl.workers.rollout.replica import TokenOutput

        _refuse_media(others)
        tokens = [int(token) for token in prompt_ids]
        overrides = self._overrides(len(tokens), sampling_params)
        [answer] = await self.model.await_elsewhere(
            self.model.generate_async([tokens], **overrides)
        )
        if answer.finish_reason is FinishReason.PROMPT_TRUNCATED:
            raise PromptTooLongError(answer)
        self.answers.append(answer)
        sequence = answer.sequence
        return TokenOutput(
            token_ids=sequence.tokens[sequence.prompt_length :].tolist(),
            log_probs=sequence.rollout_logprobs.tolist(),
            stop_reason="completed",
        )

    def _overrides(self, num_tokens: int, given: Mapping[str, Any]) -> SamplingOverrides:
        """Returns what differs from the run's sampling, and veRL's limit of the answer."""
        usual, limits = _sampling_of(self.model.sampling), self.model.limits
        if unknown := sorted(name for name in given if name not in (*_SAME, *_IGNORED)):
            raise UserError(
                f"an agent loop of veRL's samples with `{'`, `'.join(unknown)}`, which cannot be "
                f"given here: it may give {', '.join((*_SAME, *_LENGTHS))}"
            )
        longest = self.model.sampling.max_tokens
        left = limits.max_prompt_tokens + longest - num_tokens
        asked = next((int(given[name]) for name in _LENGTHS if name in given), longest)
        changed: Any = {k: v for k, v in given.items() if k in _SAME and v != usual[k]}
        overrides: SamplingOverrides = changed
        overrides["max_tokens"] = max(min(asked, longest, left), 1)
        if self.answers:
            overrides["max_prompt_tokens"] = limits.max_model_len
        return overrides


def _sampling_of(sampling: SamplingParams) -> dict[str, Any]:
    values = asdict(sampling)
    return {**{name: values[name] for name in _SAME}, "stop": list(sampling.stop)}


def _refuse_media(others: Mapping[str, Any]) -> None:
    for name in ("image_data", "video_data", "audio_data"):
        if others.get(name):
            raise UserError(
                f"an agent loop of veRL's asks the model with {name}, and prompts here are text "
                "alone: leave such rows and tools out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """One conversation of an agent loop."""

    name: str
    """Its name in veRL's registry, such as `tool_agent`."""
    client: PolicyClient
    multi_turn: JsonObject
    agent: JsonObject
    row: Mapping[str, Any]
    """Columns of the row, and what veRL's data set adds to them."""

    def text(self, section: JsonObject, key: str) -> str:
        """Returns a text of a section, empty for null."""
        return str(section[key] or "")

    def configuration(self, tokenizer: TransformersTokenizer) -> dict[str, Any]:
        """Returns veRL's configuration, as far as loops read it."""
        model = self.client.model
        rollout = {
            "name": "vllm",
            "mode": "async",
            "calculate_log_probs": True,
            "full_determinism": False,
            "prompt_length": model.limits.max_model_len,  # `PolicyClient` checks lengths
            "response_length": model.sampling.max_tokens,
            "max_model_len": model.limits.max_model_len,
            **_sampling_of(model.sampling),
            "multi_turn": self.multi_turn,
            "agent": self.agent,
        }
        path = str(tokenizer.hf_tokenizer.name_or_path)
        return {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": path}},
            "data": {"apply_chat_template_kwargs": dict(tokenizer.template_kwargs)},
        }


async def run_agent(run: AgentRun) -> Any:
    """Runs a conversation; returns veRL's `AgentLoopOutput`.

    Raises: UserError when veRL, a tool or the loop cannot be loaded, and the loop's errors.
    """
    future = asyncio.run_coroutine_threadsafe(_run(run), _event_loop())
    return await asyncio.wrap_future(future)


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all agents of this process: tools may keep connections on it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verl-agents", daemon=True).start()
    return loop


async def _run(run: AgentRun) -> Any:
    tokenizer = run.client.model.tokenizer
    if not isinstance(tokenizer, TransformersTokenizer):
        raise UserError("veRL's agent loops need a tokenizer of transformers'")
    agent = _create_agent(run, tokenizer)
    return await agent.run(run.client.sampling_params, **run.row)


def _create_agent(run: AgentRun, tokenizer: TransformersTokenizer) -> Any:
    """Creates the loop as veRL's worker does."""
    theirs = _agent_loops()
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    registry = _registry(theirs, run.text(run.agent, "agent_loop_config_path"))
    if run.name not in registry:
        known = ", ".join(sorted(registry))
        raise UserError(
            f"there is no agent loop {run.name!r} of veRL's; there are {known}: name one in the "
            "column `agent_name`, or give `agent.agent_loop_config_path`"
        )
    configuration = OmegaConf.create(run.configuration(tokenizer))
    tools = _tools(
        run.text(run.multi_turn, "tool_config_path"), run.text(run.multi_turn, "function_tool_path")
    )
    return instantiate(
        config=registry[run.name],
        trainer_config=theirs.DictConfigWrap(config=configuration),
        server_manager=run.client,
        tokenizer=tokenizer.hf_tokenizer,
        processor=None,
        hf_model_type=_model_type(str(tokenizer.hf_tokenizer.name_or_path)),
        dataset_cls=theirs.RLHFDataset,
        data_config=theirs.DictConfigWrap(configuration.data),
        tools=theirs.ToolListWrap(list(tools)),
    )


@cache
def _agent_loops() -> Any:
    """Imports veRL's agent loops, which takes some seconds."""
    try:
        from verl.experimental.agent_loop import agent_loop
    except ImportError as error:
        raise UserError(
            f"`verl_agent_workflow` runs veRL's own agent loops, and {error.name or 'verl'} cannot "
            f"be imported where explorers run ({error}): install the package `verl` there"
        ) from error
    logging.getLogger(_JOINING).addFilter(_FirstOnly())
    return agent_loop


class _FirstOnly(logging.Filter):
    """Lets each text pass once: veRL warns in every conversation with a model it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns true for a text that is new."""
        text = record.getMessage()
        is_new = text not in self._told
        self._told.add(text)
        return is_new


@cache
def _registry(theirs: Any, path: str) -> Mapping[str, Any]:
    """Returns veRL's loops by name, with those that a file names."""
    from omegaconf import OmegaConf
    from verl.utils.import_utils import resolve_config_path

    _look_in_plugin_folders()
    registry: dict[str, Any] = dict(theirs._agent_loop_registry)  # noqa: SLF001  # as its worker reads it
    try:
        named = OmegaConf.load(resolve_config_path(path)) if path else []
        return registry | {entry.name: entry for entry in named}
    except Exception as error:  # whatever is wrong with a user's file
        raise _unreadable("agent loops", path, error) from error


@cache
def _tools(tool_config_path: str, function_tool_path: str) -> tuple[Any, ...]:
    """Loads the tools, once for all conversations."""
    from verl.tools.tool_registry import load_all_tools
    from verl.utils.import_utils import resolve_config_path

    _look_in_plugin_folders()
    paths = [path and resolve_config_path(path) for path in (tool_config_path, function_tool_path)]
    try:
        return tuple(load_all_tools(paths[0] or None, paths[1] or None))
    except Exception as error:  # whatever a user's file raises
        raise _unreadable("tools", tool_config_path or function_tool_path, error) from error


def _look_in_plugin_folders() -> None:
    """Appends the current and plugin folders to Python's path, where veRL looks for classes.

    A tool that an earlier veRL had, and this one has no more, is that of a copy in such a folder.
    """
    import verl.tools

    folders = [os.getcwd(), *map(str, plugin_dirs_from_environment())]
    sys.path += [folder for folder in folders if folder not in sys.path]
    places = [os.path.join(folder, "verl", "tools") for folder in folders]
    verl.tools.__path__ += [place for place in places if place not in verl.tools.__path__]


def _unreadable(what: str, path: str, error: Exception) -> UserError:
    return UserError(
        f"the {what} of {path} cannot be loaded: {type(error).__name__}: {error}: classes are "
        "looked for in the current folder, in plugin folders and among Python's packages"
    )


@cache
def _model_type(path: str) -> str | None:
    """Returns the model's type, by which veRL knows how its turns are joined."""
    file = Path(path) / "config.json"
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    return found if isinstance(found, str) else None
