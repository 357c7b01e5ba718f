"""Answers are found in a transcript by what their call was asked, however a parser wrote them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from tests.unit.workflows.test_multi_turn import trained
from trinity.errors import UserError
from trinity.types import Experience, SamplingParams
from trinity.types import Sequence as TokenSequence
from trinity.workflows.answers import says_answer
from trinity.workflows.messages import content_of, for_template
from trinity.workflows.model import ModelWrapper
from trinity.workflows.multi_turn import MultiTurnWorkflow

CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
CALLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
]
CALL_OBJECTS = [SimpleNamespace(type="function", function=SimpleNamespace(**CALLS[0]["function"]))]
"""As the client of OpenAI's API gives them."""
ASKED = {"role": "user", "content": "2+2?"}
TOOL = {"role": "tool", "content": "4"}


class Workflow(MultiTurnWorkflow):
    """Makes samples of what a test has played."""

    is_async = True


async def played(
    answers: list[str], *written: dict[str, Any], stop: tuple[str, ...] = ()
) -> tuple[Workflow, list[Any]]:
    """Asks once for each message that stands for an answer; a tool speaks after each."""
    model: ModelWrapper = scripted_model(ScriptedEngine(answers))
    messages: list[Any] = [ASKED]
    for message in written:
        await model.chat_async(messages, tools=[{"type": "function"}], stop=stop)
        messages += [{"role": "assistant", **message}, TOOL]
    workflow = Workflow(task=task_of({"question": "2+2?", "answer": "4"}), model=model)
    workflow.model.keep_history()
    return workflow, messages


@pytest.fixture(autouse=True)
def history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model of these tests records its calls."""
    whole = ModelWrapper.__init__

    def recording(self: ModelWrapper, **arguments: Any) -> None:
        whole(self, **{**arguments, "keeps_history": True})

    monkeypatch.setattr(ModelWrapper, "__init__", recording)


def said(samples: list[Experience]) -> list[str]:
    return [turn for sample in samples for turn in trained(sample).splitlines()]


@pytest.mark.parametrize(
    "message",
    [
        {"content": CALL},
        {"content": "", "tool_calls": CALLS},
        {"content": None, "tool_calls": CALLS},
        {"tool_calls": CALLS},
        {"content": [{"type": "text", "text": CALL}]},
        {"content": [], "tool_calls": CALLS},
        {"content": ({"type": "text", "text": CALL},)},
        {"content": [{"type": "text", "text": None}], "tool_calls": CALLS},
        {"content": None, "tool_calls": CALL_OBJECTS},
        {"content": None, "tool_calls": CALLS[0]},
        {"content": None, "function_call": CALLS[0]["function"]},
        {"content": f"{CALL}<|im_end|>"},
        {"content": f"{CALL}</s>\n"},
    ],
)
async def test_a_call_of_a_tool_is_trained_however_it_is_written(message: dict[str, Any]) -> None:
    workflow, messages = await played([CALL, "it is 4"], message, {"content": "it is 4"})
    samples = workflow.experiences(messages, reward=1.0)
    assert said(samples) == [CALL, "it is 4"]
    assert all("unused_answers" not in sample.info for sample in samples)


async def test_a_call_with_words_before_it_is_the_answer_with_both() -> None:
    answer = f"I add. {CALL}"
    workflow, messages = await played([answer], {"content": "I add.", "tool_calls": CALLS})
    assert said(workflow.experiences(messages, reward=1.0)) == [answer]


async def test_a_call_whose_words_are_escaped_is_trained() -> None:
    answer = '<tool_call>{"name": "find", "arguments": {"q": "caf\\u00e9"}}</tool_call>'
    calls = [{"function": {"name": "find", "arguments": {"q": "café"}}}]
    workflow, messages = await played([answer], {"content": "", "tool_calls": calls})
    assert said(workflow.experiences(messages, reward=1.0)) == [answer]
    other = [{"function": {"name": "find", "arguments": {"q": "cafe"}}}]
    workflow, messages = await played([answer], {"content": "", "tool_calls": other})
    with pytest.raises(UserError, match="none of the assistant's messages"):
        workflow.experiences(messages, reward=1.0)


async def test_a_call_of_another_tool_is_no_answer_and_the_answer_is_counted() -> None:
    other = [{"type": "function", "function": {"name": "multiply", "arguments": "{}"}}]
    workflow, messages = await played(
        [CALL, "it is 4"], {"content": "", "tool_calls": other}, {"content": "it is 4"}
    )
    (sample,) = workflow.experiences(messages, reward=1.0)
    assert trained(sample) == "it is 4\n"
    assert sample.info["unused_answers"] == sample.metrics["unused_answers"] == 1


async def test_a_stop_text_may_be_put_back() -> None:
    answers = ["<act>left</act>", "<act>right</act>"]
    workflow, messages = await played(
        answers,
        {"content": "<act>left</act>"},
        {"content": "<act>right"},
        stop=("</act>",),
    )
    assert said(workflow.experiences(messages, reward=1.0)) == answers


@pytest.mark.parametrize(
    "message",
    [
        {"content": "four"},
        {"content": "four", "reasoning_content": "two and two"},
        {"content": "four", "reasoning": "two and two"},
        {"content": "<think>two and two</think>\nfour"},
    ],
)
async def test_thoughts_may_be_dropped_or_stand_apart(message: dict[str, Any]) -> None:
    answer = "<think>two and two</think> four"
    if "think" in str(message["content"]):
        answer = message["content"].replace("\n", " ")
        message = {"content": answer}
    workflow, messages = await played([answer], message)
    assert said(workflow.experiences(messages, reward=1.0)) == [answer]


async def test_of_two_tries_at_one_prompt_the_one_that_was_kept_is_trained() -> None:
    model = scripted_model(ScriptedEngine(["five", "four", "six"]))
    for _ in range(3):
        await model.chat_async([ASKED])
    workflow = Workflow(task=task_of({"question": "", "answer": ""}), model=model)
    kept: list[Any] = [ASKED, {"role": "assistant", "content": "four"}]
    (sample,) = workflow.experiences(kept, reward=1.0)
    assert (trained(sample), sample.info) == ("four\n", {"unused_answers": 2})


FEW_SHOT = [{"role": "user", "content": "1+3?"}, {"role": "assistant", "content": "four"}, ASKED]


async def test_an_example_that_says_what_was_tried_is_none_of_the_answers() -> None:
    model = scripted_model(ScriptedEngine(["four", "four"]))
    for _ in range(2):
        await model.chat_async(FEW_SHOT)
    workflow = Workflow(task=task_of({"question": "", "answer": ""}), model=model)
    kept: list[Any] = [*FEW_SHOT, {"role": "assistant", "content": "four"}]
    (sample,) = workflow.experiences(kept, reward=1.0)
    assert (trained(sample), sample.info) == ("four\n", {"unused_answers": 1})
    edited: list[Any] = [*FEW_SHOT, {"role": "assistant", "content": "4, of course"}]
    with pytest.raises(UserError, match="none of the assistant's messages"):
        workflow.experiences(edited, reward=1.0)


@pytest.mark.parametrize("begin", ["it", "it is ", "<think>\n"])
async def test_an_answer_that_goes_on_with_a_begin_is_trained_without_it(begin: str) -> None:
    model = scripted_model(ScriptedEngine([" four", "more"]))
    messages: list[Any] = [ASKED, {"role": "assistant", "content": begin}]
    (answer,) = await model.chat_async(messages)
    messages[-1] = {"role": "assistant", "content": begin + answer.response_text}
    messages.append(TOOL)
    await model.chat_async(messages)
    messages.append({"role": "assistant", "content": "more"})
    workflow = Workflow(task=task_of({"question": "", "answer": ""}), model=model)
    samples = workflow.experiences(messages, reward=1.0)
    assert said(samples) == [" four", "more"]
    assert all("unused_answers" not in sample.info for sample in samples)


def answer_of(text: str, stop: tuple[str, ...] = ()) -> Experience:
    return Experience(
        body=TokenSequence(
            tokens=[],  # type: ignore[arg-type]
            prompt_length=0,
            action_mask=[],  # type: ignore[arg-type]
            rollout_logprobs=[],  # type: ignore[arg-type]
            response_text=text,
        ),
        sampling=SamplingParams(stop=stop),
    )


def call_of(arguments: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("arguments", "answered"),
    [
        ('{"text": "caf\\u00e9 \\"x\\"\\n", "n": 1.0}', '{"name": "add", "text": "café"}'),
        ('{"a": "2", "b": true, "c": null}', "<function=add><parameter=a>2</parameter>"),
        ("not JSON", "add"),
        ("{}", "add()"),
    ],
)
def test_values_that_a_parser_may_write_otherwise_decide_nothing(
    arguments: str, answered: str
) -> None:
    assert says_answer({"content": "", "tool_calls": call_of(arguments)}, answer_of(answered))


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ({"content": "fou"}, answer_of("four")),
        ({"content": ""}, answer_of(CALL)),
        ({"content": "our"}, answer_of("four")),
        ({"content": "four</act>"}, answer_of("four", ("</stop>",))),
        ({"content": "five", "reasoning_content": "two and two"}, answer_of("two and two four")),
        ({"content": "and words", "tool_calls": CALLS}, answer_of(CALL)),
        ({"content": "", "tool_calls": call_of('{"a": 3}')}, answer_of(CALL)),
        ({"content": "", "tool_calls": call_of('{"a": {"b": ["two"]}}')}, answer_of(CALL)),
        ({"content": "hundred", "reasoning": "two"}, answer_of("<think>two</think> four hundred")),
        ({"content": "", "reasoning": "two"}, answer_of("<think>two</think> four")),
        ({"content": "five"}, answer_of("<think>two</think> four")),
        ({"content": "four"}, answer_of("two and two, four")),
    ],
)
def test_what_was_edited_is_no_answer(message: dict[str, Any], answer: Experience) -> None:
    assert not says_answer(message, answer)


def test_messages_of_an_api_become_those_of_a_template() -> None:
    plain = for_template({"role": "assistant", "content": None, "tool_calls": CALLS})
    assert plain["content"] == ""
    assert plain["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert json.loads(CALLS[0]["function"]["arguments"]) == {"a": 2}
    assert content_of({"content": ["a", {"type": "text", "text": "b"}, {"type": "image"}]}) == "ab"


class ClientMessage:
    """A message as the client of OpenAI's API gives it."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]:
        assert exclude_none
        return {name: value for name, value in self.fields.items() if value is not None}


async def test_a_message_of_a_client_is_the_answer_that_it_holds() -> None:
    model = scripted_model(ScriptedEngine([CALL, "it is 4"]))
    messages: list[Any] = [ASKED]
    await model.chat_async(messages)
    messages += [ClientMessage(role="assistant", content=CALL, refusal=None), TOOL]
    await model.chat_async(messages)
    messages.append(ClientMessage(role="assistant", content="it is 4"))
    workflow = Workflow(task=task_of({"question": "2+2?", "answer": "4"}), model=model)
    workflow.model.keep_history()
    assert said(workflow.experiences(messages, reward=1.0)) == [CALL, "it is 4"]


@pytest.mark.parametrize("message", [{"content": "it is 4"}, "it is 4", None, 4, {"role": None}])
async def test_what_is_no_message_is_said(message: Any) -> None:
    workflow, messages = await played(["it is 4"], {"content": "it is 4"})
    with pytest.raises(UserError, match=r"a message of a chat is .*`role` and `content`"):
        workflow.experiences([*messages, message], reward=1.0)


@pytest.mark.parametrize("name", [None, "", {}])
async def test_a_call_without_a_name_is_no_answer(name: Any) -> None:
    nameless = {"content": "", "tool_calls": [{"function": {"name": name}}]}
    workflow, messages = await played([CALL, "it is 4"], nameless, {"content": "it is 4"})
    assert said(workflow.experiences(messages, reward=1.0)) == ["it is 4"]


async def test_messages_are_known_as_they_were_asked_and_as_templates_take_them() -> None:
    model = scripted_model(ScriptedEngine(["4"]))
    listed: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]
    (answer,) = await model.chat_async(listed)
    assert model.was_asked(listed, answer)
    assert not model.was_asked([{"role": "user", "content": "2+3?"}], answer)
