"""A model that says what a test has it say, and a chat template whose turns go on exactly."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.support.said import assert_as_said, said_logprobs
from trinity.config.schema.data import FormatConfig
from trinity.plugins import WORKFLOWS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import Generation, ModelLimits, OnDelta, Prompt, Scores
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task

END = "\n"
"""Ends an answer, as the template ends every message."""


@dataclass
class ScriptedEngine:
    """Answers by a list, or by a function of the prompt; notes what it was asked."""

    answers: list[str] | Callable[[str], str]
    version: int = 4
    prompts: list[str] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        prompt = bytes(prompt_token_ids).decode()
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        given = self.answers
        text = given(prompt) if callable(given) else given[len(self.prompts) - 1]
        tokens = list((text + END).encode())[: sampling.max_tokens]
        reason = FinishReason.STOP if len(tokens) == len(text) + 1 else FinishReason.LENGTH
        logprobs = said_logprobs(prompt_token_ids, tokens, self.version)
        likeliest = [[pair] * sampling.logprobs for pair in zip(tokens, logprobs, strict=True)]
        return Generation(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=reason,
            likeliest=likeliest if sampling.logprobs else [],
        )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        return Scores(logprobs=said_logprobs(token_ids[:1], token_ids[1:], self.version + 1))


class TurnTokenizer:
    """One token a character; with `forgets` earlier answers are left out of later prompts."""

    template_sha256 = hashlib.sha256(b"turns").digest()

    def __init__(self, *, forgets: bool = False) -> None:
        self._forgets = forgets

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        told = [one for one in messages if not (self._forgets and one["role"] == "assistant")]
        text = "".join(f"<{one['role']}>{one.get('content')}{END}" for one in told)
        return self.encode(text + "<assistant>")

    def encode(self, text: str) -> Prompt:
        return Prompt(text=text, token_ids=list(text.encode()))

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode().removesuffix(END)


def scripted_model(
    engine: ScriptedEngine,
    *,
    forgets: bool = False,
    max_tokens: int = 4000,
    max_prompt_tokens: int = 9000,
    auxiliary_name: str = "",
    tokenizer: TurnTokenizer | None = None,
    temperature: float = 1.0,
    model_path: str = "",
) -> ModelWrapper:
    """A model for one run: the policy, or with a name one beside it."""
    return ModelWrapper(
        generator=engine,
        tokenizer=tokenizer or TurnTokenizer(forgets=forgets),
        limits=ModelLimits(max_model_len=20_000, max_prompt_tokens=max_prompt_tokens),
        sampling=SamplingParams(temperature=temperature, max_tokens=max_tokens),
        weights=(4, 1),
        seed_of_call=lambda call: 100 + call,
        auxiliary_name=auxiliary_name,
        model_path=model_path,
    )


def task_of(
    row: JsonObject,
    *,
    columns: FormatConfig | None = None,
    taskset: str = "rows",
    index: int = 0,
    reward: BoundReward | None = None,
    **changes: Any,
) -> Task:
    """A task, usually with the columns `question` and `answer`."""
    usual = FormatConfig(prompt_key="question", response_key="answer")
    return Task(
        raw_task=row,
        format_args=(columns or usual).model_copy(),
        index={"taskset": taskset, "index": index},
        make_reward=None if reward is None else lambda: reward,
        **changes,
    )


async def play(
    name: str,
    row: JsonObject,
    answers: list[str] | Callable[[str], str],
    *,
    max_tokens: int = 4000,
    **changes: Any,
) -> SimpleNamespace:
    """Run a workflow by its name: `experiences`, and the `engine` that was asked."""
    engine = ScriptedEngine(answers)
    model = scripted_model(engine, max_tokens=max_tokens)
    workflow = WORKFLOWS.get(name)(task=task_of(row, **changes), model=model)
    experiences: list[Experience] = await workflow.run_async()
    for experience in experiences:
        assert_as_said(experience)
    return SimpleNamespace(experiences=experiences, engine=engine)
