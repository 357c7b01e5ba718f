"""A stream ends where its taskset has responses end, as an answer in one piece does."""

import pytest

from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.chat_completions import ChatCall
from services.explorer.openai_api.completions import CompletionCall, read_completion
from tests.unit.explorer.offering import QUESTION
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer
from trinity.types import JsonObject, SamplingParams
from trinity.workflows.generation import GenerationDelta, ModelLimits
from trinity.workflows.model import ModelWrapper

WRITER = ResponseWriter(model_path="m", tokenizer=TurnTokenizer())
SAID = "the sum is 4 END, and"


def exchange(body: JsonObject) -> ChatCall | CompletionCall:
    if "prompt" in body:
        return CompletionCall(request=read_completion(body), writer=WRITER)
    return ChatCall(request=read_request(body), writer=WRITER)


def model_that_stops_at(stop: str) -> ModelWrapper:
    return ModelWrapper(
        generator=ScriptedEngine([SAID]),
        tokenizer=TurnTokenizer(),
        limits=ModelLimits(max_model_len=20_000, max_prompt_tokens=9000),
        sampling=SamplingParams(max_tokens=100, stop=(stop,)),
        weights=(4, 1),
        seed_of_call=lambda call: call,
    )


def said(chunk: JsonObject) -> str:
    """The text of its first choice."""
    choices = chunk["choices"]
    assert isinstance(choices, list) and isinstance(choices[0], dict)
    delta = choices[0].get("delta", choices[0])
    assert isinstance(delta, dict)
    return str(delta.get("content", delta.get("text", "")))


@pytest.mark.parametrize(
    ("asked", "told"), [({}, "the sum is 4 "), ({"stop": "sum"}, "the "), ({"stop": "!"}, SAID)]
)
@pytest.mark.parametrize("question", [{"messages": QUESTION}, {"prompt": "a"}])
async def test_what_is_shown_ends_before_the_stop_of_the_taskset(
    question: JsonObject, asked: JsonObject, told: str
) -> None:
    teller = exchange({"model": "m", "stream": True, **question, **asked}).stream_writer(
        model_that_stops_at("END")
    )
    (answer,) = await teller.generate(lambda _, __: None)
    assert answer.response_text == told
    pieces = [
        GenerationDelta(token_ids=[one], logprobs=[-0.25], likeliest=[]) for one in SAID.encode()
    ]
    shown = [said(chunk) for piece in pieces for chunk in teller.delta_events(0, piece)]
    rest = [said(chunk) for chunk in teller.answer_end_events(0, answer)]
    assert "".join(shown + rest) == told
