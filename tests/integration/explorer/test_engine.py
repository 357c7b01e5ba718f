"""What every rollout engine must do, shown on each at hand with an untrained model.

On a machine with a GPU, and vLLM's build for it, that is the engine of the GPU in both types.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.explorer.engine.interface import DeviceRequest, Engine
from services.explorer.engine.vllm import VllmEngine, start_vllm
from services.explorer.engine.vllm_options import detect_hardware
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.types import WeightsRequirement
from tests.integration.explorer.conftest import (
    END,
    MAX_MODEL_LEN,
    SharedEngines,
    engine_options,
)
from tests.unit.explorer.builders import build_weights, unheard_beats
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import UserError
from trinity.run.local.files import VARIABLE as SOCKETS
from trinity.runtime.device_lock import DeviceLock, Holder
from trinity.runtime.retry import RetryPolicy
from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import Generation, GenerationDelta

PROMPT = [3, 21, 22, 15, 23, 24, 33, 1, 4]
NUM_SAMPLES = 400

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to run the engine, and how closely it keeps to the model."""

    name: str
    dtype: Literal["float32", "bfloat16"]
    tolerance: float
    """Of log-probabilities, to those that transformers computes."""
    is_exact: bool
    """Whether a response depends on nothing that runs beside it, to the last bit."""


PROCESSOR = Kind(name="processor", dtype="float32", tolerance=1e-4, is_exact=True)
GPU = (
    Kind(name="gpu-float32", dtype="float32", tolerance=1e-2, is_exact=False),
    Kind(name="gpu-bfloat16", dtype="bfloat16", tolerance=0.15, is_exact=False),
)
# torch is not asked for GPUs: that starts CUDA here, and forked engines could not start it then.
AT_HAND = GPU if detect_hardware().has_gpu else (PROCESSOR,)


@pytest.fixture(scope="module", params=AT_HAND, ids=lambda kind: str(kind.name))
def kind(request: pytest.FixtureRequest) -> Kind:
    found = request.param
    assert isinstance(found, Kind)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(engines: SharedEngines, kind: Kind) -> Engine:
    return await engines.get(kind.dtype)


def sampling(seed: int = 11, max_tokens: int = 24, **others: object) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, **others)  # type: ignore[arg-type]


def all_logits(model: Path, tokens: list[int], kind: Kind) -> torch.Tensor:
    """What transformers computes, with the weights in the engine's type; [T, V]."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, kind.dtype))
    with torch.no_grad():
        logits: torch.Tensor = weights.float()(torch.tensor([tokens])).logits
    return logits[0]


def step_logits(model: Path, prompt: list[int], generation: Generation, kind: Kind) -> torch.Tensor:
    """What transformers makes of the tokens before each of the response's; [T, V]."""
    return all_logits(model, prompt + generation.token_ids, kind)[len(prompt) - 1 : -1]


def assert_agree(model: Path, generation: Generation, kind: Kind, temperature: float = 1.0) -> None:
    """The log-probabilities are those of the model, after temperature."""
    logprobs = torch.log_softmax(step_logits(model, PROMPT, generation, kind) / temperature, -1)
    expected = logprobs.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    assert (expected - torch.tensor(generation.logprobs)).abs().max() < kind.tolerance


async def test_a_seed_gives_the_same_tokens_and_logprobs_alone_and_in_a_batch(
    engine: Engine, kind: Kind
) -> None:
    seeds = [(1 << 62) + 7919 * number for number in range(64)]
    together = await asyncio.gather(*(engine.generate(PROMPT, sampling(s)) for s in seeds))
    alone = [await engine.generate(PROMPT, sampling(seed)) for seed in seeds[:4]]
    if kind.is_exact:
        assert alone == together[:4]
    assert alone == [await engine.generate(PROMPT, sampling(seed)) for seed in seeds[:4]]
    assert len({tuple(one.token_ids) for one in together}) == len(seeds)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
async def test_logprobs_are_those_of_the_model_after_temperature(
    engine: Engine, models: tuple[Path, Path], kind: Kind, temperature: float
) -> None:
    generation = await engine.generate(PROMPT, sampling(temperature=temperature))
    assert_agree(models[0], generation, kind, temperature)


async def test_samples_of_a_prompt_are_draws_from_the_model(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    """The likeliest token comes as often as its probability says, within four deviations."""
    first = torch.softmax(all_logits(models[0], PROMPT, kind)[-1], -1)
    probability, token = (value.item() for value in first.max(0))
    answers = await asyncio.gather(
        *(engine.generate(PROMPT, sampling(seed, max_tokens=1)) for seed in range(NUM_SAMPLES))
    )
    seen = sum(one.token_ids == [token] for one in answers) / NUM_SAMPLES
    deviation = (probability * (1 - probability) / NUM_SAMPLES) ** 0.5
    assert abs(seen - probability) < 4 * deviation


async def test_a_response_goes_on_after_its_end_token_where_that_is_asked_for(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    """The option is of each request, so both ways share the engine."""
    assert isinstance(engine, VllmEngine)
    rollout = RolloutModelConfig(dtype=kind.dtype, ignore_eos=True)
    options = replace(engine_options(models[0], kind.dtype), rollout=rollout)
    endless = VllmEngine(engine._engine, options)
    ended = []
    for seed in range(64):
        usual = await engine.generate(PROMPT, sampling(seed, max_tokens=64))
        ended += [(seed, usual)] if usual.finish_reason is FinishReason.STOP else []
        if len(ended) == 3:
            break
    assert ended
    for seed, before in ended:
        after = await endless.generate(PROMPT, sampling(seed, max_tokens=64))
        assert after.finish_reason is FinishReason.LENGTH
        assert len(after.token_ids) == 64
        assert after.token_ids[: len(before.token_ids)] == before.token_ids


async def test_temperature_zero_takes_the_likeliest_token(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    once = await engine.generate(PROMPT, sampling(seed=1, temperature=0.0))
    again = await engine.generate(PROMPT, sampling(seed=2, temperature=0.0))
    assert once.token_ids == again.token_ids
    assert_agree(models[0], once, kind)


async def test_top_k_renormalises_the_logprobs(engine: Engine, kind: Kind) -> None:
    generation = await engine.generate(PROMPT, sampling(top_k=1))
    assert generation.logprobs == pytest.approx(
        [0.0] * len(generation.token_ids), abs=kind.tolerance
    )


async def test_the_token_limit_is_a_finish_reason(engine: Engine) -> None:
    generation = await engine.generate(PROMPT, sampling(max_tokens=3), min_tokens=3)
    assert generation.finish_reason is FinishReason.LENGTH
    assert len(generation.token_ids) == 3


async def test_the_end_token_is_among_the_tokens(engine: Engine) -> None:
    """The untrained model ends about one response in six within 50 tokens."""
    answers = await asyncio.gather(
        *(engine.generate(PROMPT, sampling(seed=seed, max_tokens=50)) for seed in range(64))
    )
    ended = [one for one in answers if one.finish_reason is FinishReason.STOP]
    assert ended
    assert all(one.token_ids[-1] == END and END not in one.token_ids[:-1] for one in ended)
    assert all(len(one.logprobs) == len(one.token_ids) for one in ended)


async def test_no_end_before_the_least_number_of_tokens(engine: Engine) -> None:
    answers = await asyncio.gather(
        *(
            engine.generate(PROMPT, sampling(seed=s, max_tokens=50), min_tokens=50)
            for s in range(64)
        )
    )
    assert {len(one.token_ids) for one in answers} == {50}


async def test_new_weights_give_the_logprobs_of_the_new_model(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    before = await engine.generate(PROMPT, sampling())
    await engine.load_weights(models[1])
    after = await engine.generate(PROMPT, sampling())
    await engine.load_weights(models[0])
    assert_agree(models[1], after, kind)
    assert after != before
    assert await engine.generate(PROMPT, sampling()) == before


async def test_it_pauses_for_new_weights_and_no_response_is_made_with_two(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    """Runs that go on are finished with the old weights, and those that wait begin on the new."""
    made: dict[int, list[Generation]] = {0: [], 1: []}
    async with paused_between(engine, models) as gate:

        async def run(version: int, seed: int) -> None:
            needed = WeightsRequirement(version=version, incarnation=1, exact_version=True)
            async with gate.hold(needed) as weights:
                assert weights.version == version
                made[version].append(await engine.generate(PROMPT, sampling(seed)))

        await asyncio.gather(*(run(seed % 2, seed) for seed in range(16)))
    await engine.load_weights(models[0])
    for version, generations in made.items():
        assert len(generations) == 8
        for generation in generations:
            assert_agree(models[version], generation, kind)


@asynccontextmanager
async def paused_between(engine: Engine, models: tuple[Path, Path]) -> AsyncIterator[WeightGate]:
    """The explorer's own gate, with two versions published."""
    published = [replace(build_weights(n, 1), path=model) for n, model in enumerate(models)]
    async with unheard_beats() as heartbeats:
        gate = WeightGate(
            load=lambda weights: engine.load_weights(weights.path),
            published=lambda: tuple(published),
            heartbeats=heartbeats,
            retry_policy=RetryPolicy(heartbeats.waits, 120.0),
        )
        running = asyncio.create_task(gate.load_when_needed())
        yield gate
        running.cancel()
        await asyncio.wait([running])


async def test_its_sockets_lie_where_they_are_removed(
    engine: Engine, engines: SharedEngines
) -> None:
    await engine.check()
    assert [path for path in engines.sockets.iterdir() if path.is_socket()]


async def test_it_listens_on_loopback_alone(engine: Engine) -> None:
    """On a GPU this was not seen yet: docs/security.md."""
    await engine.check()
    assert cores()
    listening = listening_on(cores())
    assert all(address.is_loopback for address in listening), listening


def cores() -> set[psutil.Process]:
    """The processes of the engines that run."""
    children = psutil.Process().children(recursive=True)
    return {process for process in children if "EngineCore" in command_of(process)}


def command_of(process: psutil.Process) -> str:
    """Nothing for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def listening_on(
    processes: set[psutil.Process],
) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    return [
        ipaddress.ip_address(connection.laddr.ip)
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.mark.thorough
@pytest.mark.skipif(AT_HAND[0] is not PROCESSOR, reason="one GPU's memory is for one engine")
@pytest.mark.parametrize(("executor", "opens"), [("AtPort", False), ("AtOpenPort", True)])
async def test_a_worker_alone_opens_no_port_where_vllm_would_have_it_open_one(
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    executor: str,
    opens: bool,
) -> None:
    """The control opens it, on all addresses."""
    monkeypatch.setenv(SOCKETS, str(tmp_path))
    options = engine_options(models[0], "float32")
    backend = f"tests.integration.explorer.meeting_at_ports.{executor}"
    extra: JsonObject = {"distributed_executor_backend": backend}
    rollout = options.rollout.model_copy(update={"extra_engine_args": extra})
    others = cores()
    engine = await start_vllm(replace(options, rollout=rollout))
    try:
        listening = listening_on(cores() - others)
        assert any(address.is_unspecified for address in listening) is opens, listening
        answer = await engine.generate(PROMPT, sampling(max_tokens=4))
        assert len(answer.token_ids) >= 1
    finally:
        await engine.close()


@pytest.mark.skipif(AT_HAND is GPU, reason="this engine was started without a mode of sleep")
async def test_requests_that_sleep_with_their_engine_go_on_where_they_were(
    engine: Engine, models: tuple[Path, Path], kind: Kind, tmp_path: Path
) -> None:
    """The trainer has its turn amid their tokens; what begins meanwhile waits too."""
    assert isinstance(engine, VllmEngine)
    path = tmp_path / "gpu.lock"
    device = DeviceRequest(path=path, reason="to roll out", seconds=5.0)
    trainer, holder = DeviceLock(path), Holder.of_this_process("trainer", "to train")
    deltas: list[GenerationDelta] = []

    def begin(seed: int) -> asyncio.Task[Generation]:
        call = engine.generate(PROMPT, sampling(seed, max_tokens=64), on_delta=deltas.append)
        return asyncio.create_task(call)

    assert await engine.wake_up(device)
    assert not trainer.try_take(holder)
    calls = [begin(seed) for seed in range(8)]
    while not deltas:  # noqa: ASYNC110 - no event tells of them
        await asyncio.sleep(0)
    await engine.sleep(1, keeps_requests=True)
    assert trainer.try_take(holder)
    num_told = len(deltas)
    calls.append(begin(8))
    await asyncio.sleep(0.5)
    assert len(deltas) == num_told and not any(call.done() for call in calls)
    trainer.release()
    assert await engine.wake_up(device)
    generations = await asyncio.gather(*calls)
    assert sum(len(generation.token_ids) for generation in generations) > 2 * num_told
    for generation in generations:
        assert_agree(models[0], generation, kind)
    await engine.sleep(1)
    assert trainer.try_take(holder)
    trainer.release()
    assert await engine.wake_up(device)


async def test_a_cancelled_call_leaves_the_engine_usable(engine: Engine) -> None:
    calls = [asyncio.create_task(engine.generate(PROMPT, sampling(seed=s))) for s in range(8)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert (await engine.generate(PROMPT, sampling())).token_ids


async def test_logprobs_are_those_after_penalties(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    asked = sampling(
        temperature=0.8, repetition_penalty=1.7, presence_penalty=0.6, frequency_penalty=0.3
    )
    generation = await engine.generate(PROMPT, asked)
    expected = []
    for place, logits in enumerate(step_logits(models[0], PROMPT, generation, kind)):
        made = generation.token_ids[:place]
        for token in set(PROMPT + made):
            logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
        for token in set(made):
            logits[token] -= 0.6 + 0.3 * made.count(token)
        expected.append(torch.log_softmax(logits / 0.8, -1)[generation.token_ids[place]])
    difference = torch.stack(expected) - torch.tensor(generation.logprobs)
    assert difference.abs().max() < kind.tolerance
    assert await engine.generate(PROMPT, asked) == generation


async def test_min_p_leaves_the_likely_tokens_and_renormalises(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    generation = await engine.generate(PROMPT, sampling(min_p=0.9))
    for place, logits in enumerate(step_logits(models[0], PROMPT, generation, kind)):
        chances = torch.softmax(logits, -1)
        kept = chances >= 0.9 * chances.max()
        token = generation.token_ids[place]
        assert kept[token]
        expected = (chances[token] / chances[kept].sum()).log().item()
        assert generation.logprobs[place] == pytest.approx(expected, abs=kind.tolerance)


async def test_the_likeliest_tokens_are_told_where_they_are_asked_for(
    engine: Engine, models: tuple[Path, Path], kind: Kind
) -> None:
    generation = await engine.generate(PROMPT, sampling(logprobs=3))
    for told, logits in zip(
        generation.likeliest, step_logits(models[0], PROMPT, generation, kind), strict=True
    ):
        best = torch.log_softmax(logits, -1).topk(3)
        assert [token for token, _ in told] == best.indices.tolist()
        assert [one for _, one in told] == pytest.approx(best.values.tolist(), abs=kind.tolerance)
    plain = await engine.generate(PROMPT, sampling())
    assert plain.token_ids == generation.token_ids
    assert plain.likeliest == []


@pytest.mark.parametrize("length", [2, 30, MAX_MODEL_LEN])
async def test_given_tokens_are_as_likely_as_the_model_finds_them(
    engine: Engine, models: tuple[Path, Path], kind: Kind, length: int
) -> None:
    """Also where they fill the model, with no room for a token of its own."""
    tokens = (PROMPT * (MAX_MODEL_LEN // len(PROMPT) + 1))[:length]
    expected = torch.log_softmax(all_logits(models[0], tokens, kind)[:-1], -1)
    own = expected.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    found = await engine.score(tokens)
    assert found.logprobs == pytest.approx(own.tolist(), abs=kind.tolerance)
    assert found.likeliest == []


@pytest.mark.parametrize("length", [len(PROMPT), MAX_MODEL_LEN])
async def test_the_likeliest_tokens_at_the_places_of_given_ones_are_told(
    engine: Engine, models: tuple[Path, Path], kind: Kind, length: int
) -> None:
    tokens = (PROMPT * (MAX_MODEL_LEN // len(PROMPT) + 1))[:length]
    best = torch.log_softmax(all_logits(models[0], tokens, kind)[:-1], -1).topk(2)
    found = await engine.score(tokens, num_likeliest=2)
    assert [[token for token, _ in one] for one in found.likeliest] == best.indices.tolist()
    told = [logprob for one in found.likeliest for _, logprob in one]
    assert told == pytest.approx(best.values.flatten().tolist(), abs=kind.tolerance)
    assert len(found.logprobs) == length - 1


async def test_what_the_engine_does_not_take_is_the_mistake_of_who_asks(engine: Engine) -> None:
    """It lives on, with all other calls."""
    vocabulary = 261
    with pytest.raises(UserError, match=f"{vocabulary} is none of them"):
        await engine.generate([3, vocabulary], sampling())
    with pytest.raises(UserError, match="is none of them"):
        await engine.score([3, vocabulary])
    with pytest.raises(UserError, match="enable_openai_api"):
        await engine.generate(PROMPT, sampling(json_schema="{}"))
    with pytest.raises(UserError, match="top_p"):
        await engine.generate(PROMPT, sampling(top_p=2.0))
    assert (await engine.generate(PROMPT, sampling())).token_ids


async def test_a_text_ends_the_response_where_it_first_appears(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    whole = await engine.generate(PROMPT, sampling())
    texts = [tokenizer.decode([token]) for token in whole.token_ids]
    place = next(i for i, text in enumerate(texts) if i > 2 and text.isascii() and text.isalnum())
    assert not any(texts[place] in text for text in texts[:place])
    stopped = await engine.generate(PROMPT, sampling(stop=(texts[place], "not there")))
    assert stopped.token_ids == whole.token_ids[: place + 1]
    assert stopped.finish_reason is FinishReason.STOP
