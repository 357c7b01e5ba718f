"""veRL's own agent loops and tools run on our model, and train the engine's tokens alone."""

import json
import string
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from tests.support.said import assert_as_said, said_logprobs
from tests.unit.workflows.scripted import task_of
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonObject, SamplingParams, VersionSpan
from trinity.workflows import verl_agents
from trinity.workflows.generation import Generation, ModelLimits, OnDelta, Scores
from trinity.workflows.model import ModelWrapper

pytestmark = [
    # veRL imports it by its older path.
    pytest.mark.filterwarnings("ignore:Ray state API:DeprecationWarning"),
    pytest.mark.skipif(find_spec("verl") is None, reason="these are veRL's own agent loops"),
]
SPECIALS = ("<end>", "<system>", "<user>", "<assistant>", "<tool>")
TEMPLATE = (
    "{% if tools %}<system>{{ tools | length }}<end>{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
FUNCTIONS = '''
import threading
from verl.tools.function_tool import function_tool

@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return str(a + b)

@function_tool
async def where() -> str:
    """Says where it runs."""
    return threading.current_thread().name
'''
STATEFUL = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

CALLS = []

class Counting(BaseTool):
    async def create(self, instance_id=None, **kwargs):
        CALLS.append(("create", kwargs["create_kwargs"]))
        return await super().create(instance_id)

    async def execute(self, instance_id, parameters, **kwargs):
        CALLS.append(("execute", parameters))
        return ToolResponse(text=self.config["greeting"] * 100), 0.5, {}

    async def release(self, instance_id, **kwargs):
        CALLS.append(("release", None))
"""
CONFIGURATION = """
tools:
  - class_name: "MODULE.Counting"
    config: {type: native, greeting: "hello"}
    tool_schema:
      type: function
      function:
        name: add
        description: Counts.
        parameters: {type: object, properties: {a: {type: integer, description: x}}, required: [a]}
"""


def _tokenizer() -> HuggingFaceTokenizer:
    """A token a character, and one for each word that begins or ends a turn."""
    characters = [one for one in string.printable if one not in "\r\x0b\x0c"]
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *characters])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", clean_up_tokenization_spaces=False
    )
    fast.add_special_tokens({"additional_special_tokens": list(SPECIALS[1:])})
    return HuggingFaceTokenizer(fast, TEMPLATE, (0,))


TOKENIZER = _tokenizer()


def _text(tokens: object) -> str:
    return str(TOKENIZER.hf_tokenizer.decode(list(tokens)))  # type: ignore[call-overload]


@dataclass
class Scripted:
    """Answers by a list; notes prompts and samplings."""

    answers: list[str]
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
        number = len(self.prompts)
        self.prompts.append(_text(prompt_token_ids))
        self.samplings.append(sampling)
        tokens = [*TOKENIZER.encode(self.answers[number]).token_ids, 0][: sampling.max_tokens]
        logprobs = said_logprobs(prompt_token_ids, tokens, 4)
        reason = FinishReason.STOP if tokens[-1] == 0 else FinishReason.LENGTH
        return Generation(token_ids=tokens, logprobs=logprobs, finish_reason=reason)

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        raise NotImplementedError


def _reward(seen: list[dict[str, object]]) -> BoundReward:
    def score(solution_str: str, extra_info: dict[str, object]) -> float:
        seen.append({"solution_str": solution_str, **extra_info})
        return 2.0

    return BoundReward(score, {}, "score")


async def _play(
    answers: list[str],
    args: JsonObject,
    *,
    row: JsonObject | None = None,
    max_tokens: int = 2000,
    max_prompt_tokens: int = 1000,
    question: str = "2+3",
) -> SimpleNamespace:
    engine, seen = Scripted(answers), list[dict[str, object]]()
    model = ModelWrapper(
        generator=engine,
        tokenizer=TOKENIZER,
        limits=ModelLimits(max_model_len=4000, max_prompt_tokens=max_prompt_tokens),
        sampling=SamplingParams(max_tokens=max_tokens),
        weights=(4, 1),
        seed_of_call=lambda call: call,
    )
    prompt: list[JsonObject] = [{"role": "user", "content": question}]
    task = task_of(
        {"prompt": list(prompt), **(row or {})},
        columns=FormatConfig(prompt_key="prompt", response_key=""),
        workflow_args=args,
        reward=_reward(seen),
    )
    workflow = WORKFLOWS.get("verl_agent_workflow")(task=task, model=model)
    experiences = await workflow.run_async()
    for experience in experiences:
        assert_as_said(experience)
    return SimpleNamespace(
        experience=experiences[0], experiences=experiences, engine=engine, seen=seen
    )


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> JsonObject:
    """verl registers a function of a file once in a process."""
    path: Path = tmp_path_factory.getbasetemp() / "tools/functions.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(FUNCTIONS)
    return {"function_tool_path": str(path)}


@pytest.fixture
def stateful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonObject:
    module = f"counting_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(STATEFUL)
    path = tmp_path / "tools.yaml"
    path.write_text(CONFIGURATION.replace("MODULE", module))
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))
    return {"tool_config_path": str(path)}


def _trained(experience: Experience) -> list[str]:
    """Returns the trained tokens, in runs of neighbours."""
    sequence = experience.sequence
    response = sequence.tokens[sequence.prompt_length :]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sequence.action_mask, [0]])))
    return [_text(response[a:b]) for a, b in edges.reshape(-1, 2)]


TOOL_AGENT: JsonObject = {"default_agent_loop": "tool_agent"}


async def test_a_conversation_with_a_tool_is_one_sample_of_the_engines_tokens(
    functions: JsonObject,
) -> None:
    played = await _play([CALL, "it is 5"], {"multi_turn": functions, "agent": TOOL_AGENT})
    first = "<system>2<end><user>2+3<end><assistant>"
    assert played.engine.prompts == [first, f"{first}{CALL}<end><tool>5<end><assistant>"]
    experience: Experience = played.experience
    sequence = experience.sequence
    assert _text(sequence.tokens) == f"{played.engine.prompts[1]}it is 5<end>"
    assert _text(sequence.tokens[: sequence.prompt_length]) == first
    assert _trained(experience) == [f"{CALL}<end>", "it is 5<end>"]
    assert not sequence.rollout_logprobs[~sequence.action_mask].any()
    whole = VersionSpan(start=0, end=sequence.response_length, version=4, incarnation=1)
    assert experience.version_spans == (whole,)
    assert experience.reward == 2.0
    (seen,) = played.seen
    assert seen["solution_str"] == f"{CALL}5it is 5"
    assert seen["num_turns"] == 4
    assert seen["tool_rewards"] == [0.0]
    assert experience.metrics["num_turns"] == 4


async def test_a_tool_with_a_state_is_made_with_the_rows_arguments_and_released(
    stateful: JsonObject,
) -> None:
    kwargs: JsonObject = {"add": {"create_kwargs": {"truth": "5", "of_other_rows": None}}}
    row: JsonObject = {"agent_name": "tool_agent", "extra_info": {"tools_kwargs": kwargs}}
    played = await _play([CALL, "done"], {"multi_turn": stateful}, row=row)
    (module,) = [module for name, module in sys.modules.items() if name.startswith("counting_")][
        -1:
    ]
    assert module.CALLS == [
        ("create", {"truth": "5"}),
        ("execute", {"a": 2, "b": 3}),
        ("release", None),
    ]
    assert "...(truncated)..." in played.engine.prompts[1]
    assert played.seen[0]["tool_rewards"] == [0.5]
    assert played.experience.metrics["tool_rewards"] == 0.5


async def test_a_row_without_a_loop_has_one_turn_as_in_verl(functions: JsonObject) -> None:
    played = await _play([CALL, "never"], {"multi_turn": functions})
    assert played.engine.prompts == ["<user>2+3<end><assistant>"]
    assert _trained(played.experience) == [f"{CALL}<end>"]


@pytest.mark.parametrize(
    ("limit", "num_calls"),
    [({"max_assistant_turns": 1}, 1), ({"max_user_turns": 1}, 2), ({}, 3)],
)
async def test_turns_end_at_their_limits(
    functions: JsonObject, limit: JsonObject, num_calls: int
) -> None:
    args: JsonObject = {"multi_turn": {**functions, **limit}, "agent": TOOL_AGENT}
    played = await _play([CALL, CALL, "it is 5"], args)
    assert len(played.engine.prompts) == num_calls


async def test_all_turns_share_the_length_of_a_response(functions: JsonObject) -> None:
    args: JsonObject = {"multi_turn": functions, "agent": TOOL_AGENT}
    room = len(CALL) + 1 + len("T5EA") + 3
    played = await _play([CALL, "it is 5"], args, max_tokens=room)
    assert played.experience.sequence.response_length == room
    assert _trained(played.experience)[-1] == "it "
    narrow = await _play([CALL, "it is 5"], args, max_tokens=room, max_prompt_tokens=20)
    left = 20 - len("S2EU2+3EA") + 3
    assert [one.max_tokens for one in narrow.engine.samplings] == [room, left]
    assert _trained((await _play([CALL, "it is 5"], args)).experience)[-1] == "it is 5<end>"


async def test_tools_run_in_a_thread_of_their_own_which_they_may_block(
    functions: JsonObject,
) -> None:
    call = '<tool_call>{"name": "where", "arguments": {}}</tool_call>'
    played = await _play([call, "so"], {"multi_turn": functions, "agent": TOOL_AGENT})
    assert played.engine.prompts[1].endswith("<tool>verl-agents<end><assistant>")


async def test_a_prompt_that_is_too_long_is_a_placeholder_without_reward(
    functions: JsonObject,
) -> None:
    args: JsonObject = {"multi_turn": functions, "agent": TOOL_AGENT}
    played = await _play([], args, max_prompt_tokens=20, question="2" * 30)
    assert played.experience.finish_reason is FinishReason.PROMPT_TRUNCATED
    assert played.experience.reward == 0.0
    assert [seen["num_turns"] for seen in played.seen] == [1]


LOOP = """
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

class Own(AgentLoopBase):
    def __init__(self, *args, add=0, first=None, trains=2, **kwargs):
        super().__init__(*args, **kwargs)
        self.add, self.first, self.trains = add, first, trains

    async def run(self, sampling_params, **kwargs):
        prompt = await self.ct_build_initial_tokens(kwargs["raw_prompt"])
        sampling_params = {**sampling_params, "temperature": 0.5}
        made = await self.server_manager.generate(
            "1", prompt_ids=prompt, sampling_params=sampling_params
        )
        tokens = [*made.token_ids[:-1], made.token_ids[-1] + self.add]
        mask = [int(place < self.trains) for place in range(len(tokens))]
        prompt = prompt if self.first is None else [self.first, *prompt[1:]]
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=tokens, response_mask=mask,
            reward_score=0.75, num_turns=2, metrics=AgentLoopMetrics(),
        )
"""


COOLING = """
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

class Cooling(AgentLoopBase):
    def __init__(self, *args, temperatures=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.temperatures = temperatures

    async def run(self, sampling_params, **kwargs):
        prompt = await self.ct_build_initial_tokens(kwargs["raw_prompt"])
        response, mask = [], []
        for temperature in self.temperatures:
            made = await self.server_manager.generate(
                "1", prompt_ids=[*prompt, *response],
                sampling_params={**sampling_params, "temperature": temperature},
            )
            response += [*made.token_ids, 7]
            mask += [1] * len(made.token_ids) + [0]
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=response, response_mask=mask,
            num_turns=2, metrics=AgentLoopMetrics(),
            extra_fields={"columns": sorted(kwargs), "given": sampling_params},
        )
"""


@pytest.mark.parametrize(
    ("temperatures", "trained"),
    [
        ([1.0, 1.0, 1.0], [["1<end>", "2<end>", "3<end>"]]),
        ([0.5, 0.5, 0.5], [["1<end>", "2<end>", "3<end>"]]),
        ([1.0, 0.5, 1.0], [["1<end>", "3<end>"], ["2<end>"]]),
    ],
)
async def test_turns_that_a_loop_samples_differently_are_samples_of_their_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    temperatures: list[float],
    trained: list[list[str]],
) -> None:
    module = f"cooling_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(COOLING)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))
    path = tmp_path / "loops.yaml"
    path.write_text(f"- name: own\n  _target_: {module}.Cooling\n  temperatures: {temperatures}\n")
    agent: JsonObject = {"default_agent_loop": "own", "agent_loop_config_path": str(path)}
    row: JsonObject = {"agent_name": "own", "level": 3}
    played = await _play(["1", "2", "3"], {"agent": agent}, row=row)
    assert [_trained(sample) for sample in played.experiences] == trained
    assert [sample.reward for sample in played.experiences] == [2.0] * len(trained)
    used = [sample.sampling.temperature for sample in played.experiences]
    assert used == list(dict.fromkeys(temperatures))
    [seen] = played.seen
    of_verl = ["extra_info", "index", "interaction_kwargs", "raw_prompt", "tools_kwargs"]
    assert seen["columns"] == sorted([*of_verl, "level", "prompt"])
    usual = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
    assert seen["given"] == {**usual, "min_p": 0.0, "stop": [], "logprobs": True}


@pytest.fixture
def own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JsonObject]:
    module = f"own_loop_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(LOOP)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))

    def configure(**changes: int) -> JsonObject:
        path = tmp_path / f"loops_{len(list(tmp_path.iterdir()))}.yaml"
        own = {"name": "own", "_target_": f"{module}.Own", **changes}
        path.write_text(json.dumps([own]))
        return {"default_agent_loop": "own", "agent_loop_config_path": str(path)}

    return configure


async def test_a_loop_of_ones_own_runs_and_gives_its_reward(
    own_loop: Callable[..., JsonObject],
) -> None:
    played = await _play(["5"], {"agent": own_loop()})
    assert played.experience.reward == 0.75
    assert played.engine.samplings[0].temperature == 0.5
    assert _trained(played.experience) == ["5<end>"]


@pytest.mark.parametrize("changes", [{"add": 1}, {"first": 9}])
async def test_a_loop_that_trains_tokens_of_its_own_is_refused(
    own_loop: Callable[..., JsonObject], changes: dict[str, int]
) -> None:
    with pytest.raises(UserError, match="tokens that the engine did not generate"):
        await _play(["5"], {"agent": own_loop(**changes)})


@pytest.mark.parametrize(("trains", "trained"), [(1, ["5"]), (0, [])])
async def test_tokens_of_a_loops_own_may_stand_where_they_are_not_trained(
    own_loop: Callable[..., JsonObject], trains: int, trained: list[str]
) -> None:
    experience = (await _play(["5"], {"agent": own_loop(add=1, trains=trains)})).experience
    assert _trained(experience) == trained
    assert not experience.sequence.rollout_logprobs[trains:].any()


def test_agents_do_not_hold_up_the_end_of_the_process() -> None:
    before = set(threading.enumerate())
    loop = verl_agents._event_loop.__wrapped__()
    [thread] = set(threading.enumerate()) - before
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()
    assert thread.daemon


@pytest.mark.parametrize(
    ("config", "kind"), [('{"model_type": "llama"}', "llama"), ('{"model_type": 3}', None)]
)
def test_the_kind_of_model_is_that_of_its_configuration(
    tmp_path: Path, config: str, kind: str | None
) -> None:
    assert verl_agents._model_type(str(tmp_path / "none")) is None
    (tmp_path / "config.json").write_text(config)
    assert verl_agents._model_type(str(tmp_path)) == kind


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"agent": {"default_agent_loop": "no_such"}}, "there are single_turn_agent, tool_agent"),
        ({"multi_turn": {"max_turns": 3}}, "multi_turn has no max_turns: it has enable"),
        ({"multi_turn": 3}, "give a section with enable"),
        ({"tools": 3}, "knows no workflow_args tools"),
        (
            {"multi_turn": {"tool_config_path": "/no/such.yaml"}},
            "the tools of /no/such.yaml cannot be loaded",
        ),
    ],
)
async def test_mistakes_are_named(args: JsonObject, message: str) -> None:
    with pytest.raises(UserError, match=message):
        await _play(["5"], args)
