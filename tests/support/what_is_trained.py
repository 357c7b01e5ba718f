"""Rows of every kind as they are trained, for docs/what-is-trained.md: real code, given answers.

python -m tests.support.what_is_trained docs/what-is-trained.md [--check]
"""

import asyncio
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from services.trainer.data.chat import ChatEncoder
from tests.support.said import said_logprobs
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Samples
from trinity.data.chat_spans import Conversation
from trinity.types import Experience, FinishReason, SamplingParams
from trinity.workflows.answers import match_answers
from trinity.workflows.generation import Generation, ModelLimits, OnDelta, Scores
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turns import merge_turns

SPECIALS = ("<end>", "<system>", "<user>", "<assistant>", "<tool>")
CALLS = (
    "{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{% endif %}"
)
USUAL = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}" + CALLS + "<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETS = USUAL.replace("{{ m['content'] }}", "{{ m['content'].split('/think ')[-1] }}")
"""A template that drops the thoughts of earlier answers, as those of thinking models do."""
BEGIN, END = "<!-- rows -->", "<!-- end -->"
Run = list[Experience]


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a character, and one for each word that begins or ends a message."""
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *string.printable])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", clean_up_tokenization_spaces=False
    )
    fast.add_special_tokens({"additional_special_tokens": list(SPECIALS[1:])})
    fast.chat_template = USUAL
    return fast


class GivenAnswers:
    """An engine that answers by a list."""

    def __init__(self, words: HuggingFaceTokenizer, answers: Sequence[str]) -> None:
        self._words = words
        self._answers = iter(answers)

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Returns the next answer and its end token."""
        tokens = [*self._words.encode(next(self._answers)).token_ids, 0]
        logprobs = said_logprobs(prompt_token_ids, tokens)
        return Generation(token_ids=tokens, logprobs=logprobs, finish_reason=FinishReason.STOP)

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores nothing."""
        raise NotImplementedError


def model_of(answers: Sequence[str], template: str = USUAL) -> ModelWrapper:
    """The model of one run."""
    words = HuggingFaceTokenizer(tokenizer(), template, (0,))
    return ModelWrapper(
        generator=GivenAnswers(words, answers),
        tokenizer=words,
        limits=ModelLimits(max_model_len=4000, max_prompt_tokens=2000),
        sampling=SamplingParams(max_tokens=1000),
        weights=(0, 1),
        seed_of_call=lambda call: call,
        keeps_history=True,
    )


async def one_turn(answer: str) -> Run:
    """A question and its answer."""
    return await model_of([answer]).chat_async([{"role": "user", "content": "2+3?"}])


async def conversation(
    answers: Sequence[str], template: str = USUAL, temperatures: Sequence[float] = (1.0, 1.0)
) -> Run:
    """Two answers with a hint between them, as `MultiTurnWorkflow` makes samples of them."""
    model = model_of(answers, template)
    messages: list[Message] = [{"role": "user", "content": "guess"}]
    for temperature in temperatures:
        (turn,) = await model.chat_async(messages, temperature=temperature)
        messages.append({"role": "assistant", "content": turn.response_text})
        messages.append({"role": "user", "content": "more"})
    return _samples(model, messages)


async def tool(answer: str) -> Run:
    """A call of a tool, written as an API writes it: no content, and the call beside it."""
    model = model_of(["[add]", answer])
    messages: list[Any] = [{"role": "user", "content": "2+3?"}]
    await model.chat_async(messages)
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    messages.append({"role": "tool", "content": "5"})
    (turn,) = await model.chat_async(messages)
    messages.append({"role": "assistant", "content": turn.response_text})
    return _samples(model, messages)


async def agent(answer: str) -> Run:
    """An agent that begins again with a summary; it takes all its calls as experiences."""
    model = model_of(["so far: 2", answer])
    await model.chat_async([{"role": "user", "content": "sum up"}])
    await model.chat_async([{"role": "user", "content": "so far: 2. go on"}])
    return model.extract_experience_from_history()


def _samples(model: ModelWrapper, messages: Sequence[Any]) -> Run:
    answers = model.extract_experience_from_history()
    return merge_turns(match_answers(messages, answers, model.was_asked).turns)


def advantages_of(runs: Sequence[Run], rewards: Sequence[float], unit: str) -> list[float]:
    """GRPO's advantages of the samples of one group."""
    whole = Samples.of_groups(np.repeat(rewards, [len(run) for run in runs]).tolist())
    numbers = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    steps = np.concatenate([np.arange(len(run)) for run in runs])
    fields = {name: getattr(whole, name) for name in ("rewards", "groups", "lots", "states")}
    nothing = {name: getattr(whole, name) for name in ("mean_logprobs", "step_rewards")}
    samples = Samples(**fields, **nothing, runs=numbers, steps=steps)
    values: list[float] = ADVANTAGES.get("grpo")(samples, unit=unit).values.tolist()
    return values


def marked(tokens: Sequence[int], trained: Sequence[bool]) -> str:
    """A row as text, with double brackets around what is trained."""
    text, was = "", False
    for token, is_trained in zip(tokens, trained, strict=True):
        text += ("[[" if is_trained else "]]") if is_trained != was else ""
        text += str(tokenizer_once().convert_ids_to_tokens(int(token)))
        was = is_trained
    return text + ("]]" if was else "")


_TOKENIZERS: list[PreTrainedTokenizerFast] = []


def tokenizer_once() -> PreTrainedTokenizerFast:
    """The tokenizer, made once."""
    if not _TOKENIZERS:
        _TOKENIZERS.append(tokenizer())
    return _TOKENIZERS[0]


def group(title: str, runs: Sequence[Run], rewards: Sequence[float], unit: str = "run") -> str:
    """The samples of a group, each with its run, its advantage and its text."""
    advantages = iter(advantages_of(runs, rewards, unit))
    lines = [f"{title}, unit: {unit}"]
    for number, (run, reward) in enumerate(zip(runs, rewards, strict=True)):
        for sample in run:
            sequence = sample.sequence
            mask = [False] * sequence.prompt_length + sequence.action_mask.tolist()
            temperature = sample.sampling.temperature if sample.sampling else 1.0
            lines.append(
                f"  run {number}, reward {reward:g}, advantage {next(advantages):+.2f}, "
                f"temperature {temperature:g}: {marked(sequence.tokens.tolist(), mask)}"
            )
    return "\n".join(lines)


def sft_rows() -> str:
    """A row of data by its last answer, by all of them, and with a template that ends none."""
    turns: list[dict[str, object]] = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
    ]
    lines = ["rows of sft, without advantages"]
    for title, template, is_whole in (
        ("the last answer", USUAL, False),
        ("enable_concatenated_multi_turn", USUAL, True),
        ("a template without an end token", USUAL.replace("<end>", ""), False),
    ):
        words = tokenizer()
        words.chat_template = template
        chat = ChatEncoder(words, frozenset({0}))
        whole = Conversation(index=0, messages=turns)
        made = chat.encode_turns(whole) if is_whole else _last(chat, turns)
        tokens, first, mask, _ = made
        trained = [False] * first + (mask or [True] * (len(tokens) - first))
        lines.append(f"  {title}: {marked(tokens, trained)}")
    return "\n".join(lines)


def _last(chat: ChatEncoder, turns: list[dict[str, object]]) -> Any:
    return chat.encode(Conversation(index=0, messages=turns[:-1]), turns[-1:])


async def rows() -> str:
    """All kinds of rows."""
    think = "2 and 3/think "
    right, wrong = (1.0, 0.0)
    short = [await one_turn("6")]
    parts = [
        group("one turn", [await one_turn("5"), *short], (right, wrong)),
        group("two turns", [await conversation(["4", "5"]), *short], (right, wrong)),
        group("a tool", [await tool("it is 5"), *short], (right, wrong)),
    ]
    thoughts = [await conversation([f"{think}4", f"{think}5"], FORGETS), *short]
    parts += [
        group("a template that drops earlier thoughts", thoughts, (right, wrong), unit)
        for unit in ("run", "sample")
    ]
    cooled = [await conversation(["4", "5"], temperatures=(1.0, 0.5)), *short]
    parts.append(group("turns at two temperatures", cooled, (right, wrong)))
    parts.append(group("an agent", [await agent("5"), *short], (right, wrong)))
    return "\n\n".join([*parts, sft_rows()])


def page_with_rows(page: str, made: str) -> str:
    """The page with these rows between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n{made}\n```\n{END}{after}"


def main() -> None:
    """Write the rows into the page, or say that it has others."""
    path = Path(sys.argv[1])
    page = path.read_text(encoding="utf-8")
    new = page_with_rows(page, asyncio.run(rows()))
    if "--check" not in sys.argv:
        path.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit(f"{path} shows other rows: python -m tests.support.what_is_trained {path}")


if __name__ == "__main__":
    main()
