"""Workflows that bring an OpenAI client: their calls are those of the run."""

import asyncio
import socket
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.errors import MAX_SHOWN_CHARACTERS, InvalidApiRequest
from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import Attempt, WeightsId
from tests.support.said import said_of
from tests.unit.explorer.builders import (
    KEY,
    ArithmeticEngine,
    CharacterTokenizer,
    build_assignment,
    build_plan,
)
from tests.unit.explorer.offering import QUESTION, ROLLOUT, Offered
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.runtime.threads import DaemonThreads
from trinity.types import Experience, JsonObject, SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper
from trinity.workflows.model_access import ApiAccess
from trinity.workflows.workflow import Workflow

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BEGUN = [*QUESTION, {"role": "assistant", "content": "It is"}]
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "a"}]


class Agent(Workflow):
    """Two turns over a client that knows nothing of training; in a thread."""

    def run(self) -> list[Experience]:
        client = self.model.get_openai_client()
        chat: list[dict[str, str]] = [{"role": "user", "content": self.task.task_desc}]
        for _ in range(2):
            answer = client.chat.completions.create(
                model=client.model_path,  # type: ignore[attr-defined]
                messages=chat,  # type: ignore[arg-type]
                temperature=0.5,
            )
            said = answer.choices[0].message.content or ""
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        experiences = self.model.extract_experience_from_history()
        for experience in experiences:
            experience.reward = 1.0
        return experiences


async def test_a_call_over_http_is_a_call_of_the_run(offered: Offered) -> None:
    async with offered.client as client:
        answer = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            n=2,
            temperature=0.5,
            max_completion_tokens=5,
            presence_penalty=0.5,
            extra_body={"top_k": 7, "return_token_ids": True},
        )
    first, second = offered.model.extract_experience_from_history(clear_history=False)
    assert first.sampling == SamplingParams(
        temperature=0.5, max_tokens=5, presence_penalty=0.5, top_k=7, seed=100
    )
    assert [choice.message.content for choice in answer.choices] == [
        first.response_text,
        second.response_text,
    ]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    extra = answer.choices[0].model_extra
    assert extra is not None
    assert extra["token_ids"] == first.sequence.tokens[first.sequence.prompt_length :].tolist()
    (direct,) = await offered.model.chat_async(QUESTION)
    assert offered.model.extract_experience_from_history() == [first, second, direct]
    assert offered.model.extract_experience_from_history() == []


async def test_log_probabilities_come_with_the_answer(offered: Offered) -> None:
    async with offered.client as client:
        answer = await client.chat.completions.create(
            model="any",
            messages=QUESTION,  # type: ignore[arg-type]
            logprobs=True,
            top_logprobs=2,
        )
    told = answer.choices[0].logprobs
    assert told is not None and told.content is not None
    (recorded,) = offered.model.extract_experience_from_history()
    assert [one.logprob for one in told.content] == said_of(recorded)
    assert [one.logprob for one in told.content[0].top_logprobs] == [-0.5, -1.5]


async def test_a_stream_tells_what_an_answer_in_one_piece_would(offered: Offered) -> None:
    async with offered.client as client:
        stream = await client.chat.completions.create(
            model="any",
            messages=ASKED,
            n=2,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    first, _ = offered.model.extract_experience_from_history()
    own = [one for chunk in chunks for one in chunk.choices if one.index == 0]
    pieces = [one.delta.content or "" for one in own]
    assert "".join(pieces) == first.response_text
    assert len([piece for piece in pieces if piece]) == 3
    assert own[0].delta.role == "assistant"
    assert [one.finish_reason for one in own if one.finish_reason] == ["stop"]
    told = [one.logprobs for one in own if one.logprobs]
    assert [t.logprob for one in told for t in one.content or ()] == said_of(first)
    usage = chunks[-1].usage
    assert usage is not None and usage.completion_tokens == 6
    assert {chunk.system_fingerprint for chunk in chunks} == {"v4-1"}


async def test_who_hangs_up_on_a_stream_ends_what_is_generated(offered: Offered) -> None:
    offered.engine.gate = asyncio.Event()
    async with offered.client as client:
        going = asyncio.ensure_future(
            client.chat.completions.create(model="m", messages=QUESTION, stream=True)  # type: ignore[arg-type]
        )
        async with asyncio.timeout(30):
            await offered.engine.begun.wait()
        going.cancel()
        async with asyncio.timeout(30):
            while not offered.engine.num_aborted:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)


async def test_what_is_not_there_is_refused_in_json(offered: Offered) -> None:
    async with offered.client as client:
        with pytest.raises(openai.NotFoundError) as told:
            await client.embeddings.create(model="m", input="a")
    assert told.value.type == "invalid_request_error"


async def test_an_error_names_the_key_as_openai_has_it(offered: Offered) -> None:
    async with offered.client as client:
        with pytest.raises(openai.BadRequestError) as told:
            await client.chat.completions.create(model="m", messages=QUESTION, n=0)  # type: ignore[arg-type]
    assert (told.value.param, told.value.type) == ("n", "invalid_request_error")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"response_format": {"type": "grammar"}}, r"`response_format\.type`"),
        ({"response_format": "json"}, r"`response_format\.type`"),
        ({"response_format": {"type": "json_schema"}}, r"`response_format\.json_schema\.schema`"),
        ({"guided_json": {"type": "object"}}, "`guided_json`"),
        ({"tools": [{"type": "function"}]}, r"`tools\[0\]`"),
        ({"tools": [ADD]}, "enable_auto_tool_choice"),
        ({"tools": [ADD], "tool_choice": "always"}, "`tool_choice`"),
        ({"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}, "`tool_choice`"),
        ({"tool_choice": "required"}, "`tool_choice` forces a call: give `tools`"),
        (
            {
                "tools": [ADD],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "`response_format`",
        ),
        ({"stream_options": 3}, "`stream_options`"),
        ({"stream": True, "max_tokens": 0}, "`max_tokens`"),
        ({"n": 0}, "`n`"),
        ({"temperature": "hot"}, "`temperature`"),
        ({"messages": []}, "`messages`"),
        ({"messages": [{"role": "user"}]}, r"`messages\[0\].content`"),
        ({"stop": ["a", ""]}, "`stop`"),
        ({"stop": 3}, "`stop`"),
        ({"top_logprobs": 2}, "`top_logprobs` needs `logprobs: true`"),
        ({"logprobs": 5}, "`logprobs` is neither true nor false"),
        ({"stream": "false"}, "`stream` is neither true nor false"),
        ({"ignore_eos": True}, "`ignore_eos` would change the answer"),
        ({"stop_token_ids": [3]}, "`stop_token_ids` would change the answer"),
        ({"skip_special_tokens": False}, "`skip_special_tokens` would change"),
        ({"chat_template_kwargs": 3}, "`chat_template_kwargs` is not an object"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            r"set `model\.chat_template_kwargs\.enable_thinking`, or leave it out",
        ),
        ({"reasoning_effort": "low"}, r"`model\.chat_template_kwargs\.reasoning_effort`"),
        ({"continue_final_message": True}, "not the assistant's, .*: leave out `continue_final"),
        ({"add_generation_prompt": False}, "leave out `add_generation_prompt`, or end otherwise"),
        ({"messages": BEGUN, "add_generation_prompt": True}, "is continued: .*`add_generation_"),
        ({"messages": BEGUN, "continue_final_message": False}, "is continued: .*`continue_final_"),
        ({"messages": BEGUN, "echo": True}, "without repeating it: leave out `echo`"),
        ({"add_special_tokens": True}, "`add_special_tokens`"),
        ({"echo": "yes"}, "`echo` is neither true nor false"),
        ({"use_beam_search": True}, "`use_beam_search` would change the answer"),
        ({"return_tokens_as_token_ids": True}, "`return_tokens_as_token_ids` would change"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "`repetition_detection` would change"),
        ({"temperature": -1}, "`temperature` is a number at least 0"),
        ({"top_p": 0}, "`top_p` is a number above 0 and at most 1"),
        ({"top_p": 1.5}, "`top_p` is a number above 0 and at most 1"),
        ({"repetition_penalty": 0}, "`repetition_penalty` is a number above 0"),
        ({"presence_penalty": 3}, "`presence_penalty` is a number at least -2 and at most 2"),
        ({"tempreature": 0.5}, "`tempreature` is not read: did you mean `temperature`"),
        ({"max_new_tokens": 5}, "`max_new_tokens` is not read: did you mean `max_tokens`"),
        ({"extra_body": {"top_k": 3}}, "`extra_body` is an argument of OpenAI's client"),
    ],
)
async def test_what_is_not_understood_is_refused_by_name(
    offered: Offered, asked: dict[str, object], named: str
) -> None:
    async with offered.client as client:
        with pytest.raises(openai.BadRequestError, match=named):
            body = {"model": "any", "messages": QUESTION, **asked}
            await client.post("/chat/completions", body=body, cast_to=object)
    assert offered.model.extract_experience_from_history() == []


async def test_keys_that_change_nothing_are_taken(offered: Offered) -> None:
    """As agents' frameworks send them with every request."""
    harmless = {
        "ignore_eos": False,
        "skip_special_tokens": True,
        "stop_token_ids": [],
        "chat_template_kwargs": {},
        "modalities": ["text"],
        "length_penalty": 1.0,
        "reasoning_effort": None,
        "parallel_tool_calls": True,
        "stream": 0,
        "return_token_ids": 1,
        "user": "me",
        "store": False,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "echo": True,
        "add_special_tokens": False,
        "use_beam_search": False,
        "include_reasoning": True,
        "vllm_xargs": {},
        "metadata": {"run": "1"},
        "top_a": 0.2,
        "safety_identifier": "me",
        "prompt_cache_key": "a",
        "x_own": 1,
    }
    async with offered.client as client:
        body = {"model": "any", "messages": QUESTION, **harmless}
        await client.post("/chat/completions", body=body, cast_to=object)
    assert len(offered.model.extract_experience_from_history()) == 1


async def test_an_answer_that_is_begun_is_continued_as_the_keys_of_vllm_say(
    offered: Offered,
) -> None:
    async with offered.client as client:
        keys = {"continue_final_message": True, "add_generation_prompt": False}
        body = {"model": "any", "messages": BEGUN, **keys}
        await client.post("/chat/completions", body=body, cast_to=object)
    (answer,) = offered.model.extract_experience_from_history()
    assert answer.sequence.prompt_text == "user:a\nassistant:It is\n"


class TemplateTokenizer(CharacterTokenizer):
    """A tokenizer whose chat template reads one variable."""

    template_variables = frozenset({"messages", "effort"})


def test_a_variable_that_the_template_does_not_read_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = ResponseWriter(model_path="m", tokenizer=TemplateTokenizer())
    for value in (False, True):
        variables = {"enable_thinking": value}
        asked = read_request({"messages": QUESTION, "chat_template_kwargs": variables})
        writer.check_supported(asked)
    (told,) = caplog.records
    assert "does not read" in told.message and told.__dict__["variable"] == "enable_thinking"
    long = read_request({"messages": QUESTION, "chat_template_kwargs": {"x" * 9999: 1}})
    writer.check_supported(long)
    assert max(map(len, writer.told_variables)) == MAX_SHOWN_CHARACTERS
    for name in ("effort", "add_generation_prompt"):
        asked = read_request({"messages": QUESTION, "chat_template_kwargs": {name: False}})
        with pytest.raises(InvalidApiRequest, match="is the run's, not a request's"):
            writer.check_supported(asked)


def test_a_variable_of_the_template_may_be_named_as_the_run_has_it() -> None:
    request = read_request(
        {"messages": QUESTION, "chat_template_kwargs": {"enable_thinking": False}}
    )
    same = {"enable_thinking": False}
    ResponseWriter(
        model_path="m", tokenizer=CharacterTokenizer(), template_kwargs=same
    ).check_supported(request)
    other = ResponseWriter(
        model_path="m", tokenizer=CharacterTokenizer(), template_kwargs={"enable_thinking": True}
    )
    with pytest.raises(InvalidApiRequest, match="is the run's, not a request's"):
        other.check_supported(request)


async def test_only_who_has_key_and_address_is_answered(offered: Offered) -> None:
    access = offered.model.api_access
    elsewhere = access.address.rsplit("/", 2)[0] + "/0123/v1"
    async with (
        openai.AsyncOpenAI(base_url=access.address, api_key="guess", max_retries=0) as keyless,
        openai.AsyncOpenAI(base_url=elsewhere, api_key=access.key, max_retries=0) as lost,
    ):
        with pytest.raises(openai.AuthenticationError, match="api_key"):
            await keyless.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
        with pytest.raises(openai.APIStatusError, match="no such session") as told:
            await lost.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
    assert told.value.status_code == 404
    assert access.address.startswith("http://127.0.0.1:")
    assert not offered.engine.seeds


async def test_a_key_that_is_not_given_is_generated() -> None:
    rollout = RolloutModelConfig(enable_openai_api=True)
    apis = [
        AttemptApiServer(model_path="m", rollout=rollout, tokenizer=CharacterTokenizer())
        for _ in range(2)
    ]
    model = ModelWrapper(
        generator=ArithmeticEngine(),
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(max_tokens=8),
        weights=(0, 0),
        seed_of_call=lambda call: call,
    )
    await apis[0].start_api()
    access, other = (api.register_attempt(model) for api in apis)
    assert "EMPTY" not in (access.key, other.key) and access.key != other.key
    async with openai.AsyncOpenAI(base_url=access.address, api_key="EMPTY", max_retries=0) as empty:
        with pytest.raises(openai.AuthenticationError):
            await empty.chat.completions.create(model="m", messages=ASKED)
    model.enable_api(access)
    async with model.get_openai_async_client() as client:
        assert (await client.chat.completions.create(model="m", messages=ASKED)).choices
    await apis[0].stop_api()


async def test_an_attempt_that_is_over_answers_no_more(offered: Offered) -> None:
    offered.engine.gate = asyncio.Event()
    async with offered.client as client:
        call = client.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
        going = asyncio.ensure_future(call)
        async with asyncio.timeout(30):
            await offered.engine.begun.wait()
        await offered.model.close()
        with pytest.raises(openai.APIStatusError, match="is over"):
            await going
        with pytest.raises(openai.APIStatusError, match="is over"):
            await client.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
    assert offered.engine.num_aborted == 1


async def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        rollout = ROLLOUT.model_copy(update={"base_port": port})
        api = AttemptApiServer(model_path="m", rollout=rollout, tokenizer=CharacterTokenizer())
        await api.start_api()
        assert api.port not in (0, port)
        await api.stop_api()
    for _ in range(2):  # the next process has the same address
        api = AttemptApiServer(model_path="m", rollout=rollout, tokenizer=CharacterTokenizer())
        await api.start_api()
        assert api.port == port
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/health")).is_success
            await api.stop_api()


def attempt() -> Attempt:
    return Attempt(key=KEY, assignment=build_assignment(), run=0, number=0)


async def test_an_agent_with_a_client_of_its_own_is_trained(
    api: AttemptApiServer, tmp_path: Path
) -> None:
    WORKFLOWS.register("test_agent", Agent)
    taskset: JsonObject = {"taskset": {"default_workflow_type": "test_agent"}}
    plan = build_plan(
        tmp_path,
        buffer={"explorer_input": taskset},
        explorer={"rollout_model": {"enable_history": True, "enable_openai_api": True}},
    )
    engine = ArithmeticEngine()
    [stage] = plan.stages
    bench = WorkflowFactory(
        plan=stage, seed=plan.seed, generator=engine, tokenizer=CharacterTokenizer(), api=api
    )
    threads = DaemonThreads(name="workflow", max_threads=2)
    limit = RunTimeLimit(stage.config.explorer)
    runner = AttemptRunner(
        factory=bench, engine=engine, limit=limit, threads=threads, tasks=DeadlineTasks()
    )
    outcomes = [
        await runner.run_attempt(attempt(), WeightsId(version=4, incarnation=1)) for _ in range(2)
    ]
    assert [outcome.failure for outcome in outcomes] == ["", ""]
    first, second = outcomes[0].experiences
    assert second.sequence.prompt_text.startswith(
        f"{first.sequence.prompt_text}assistant:{first.response_text}\n"
    )
    assert [one.eid.step for one in (first, second) if one.eid] == [0, 1]
    tokens = [[one.sequence.tokens.tolist() for one in each.experiences] for each in outcomes]
    assert tokens[0] == tokens[1]


async def test_without_the_keys_the_sentence_names_them() -> None:
    model = ModelWrapper(
        generator=ArithmeticEngine(),
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(),
        weights=(0, 0),
        seed_of_call=lambda call: call,
    )
    with pytest.raises(UserError, match=r"rollout_model\.enable_openai_api: true"):
        model.get_openai_client()
    with pytest.raises(UserError, match=r"rollout_model\.enable_history: true"):
        model.extract_experience_from_history()
    model.enable_api(ApiAccess(address="http://127.0.0.1:9/v1", key="k", model_path="m"))
    assert (model.api_address, model.api_key) == ("http://127.0.0.1:9", "k")
