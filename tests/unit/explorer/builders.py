"""Stand-ins for what costs seconds: an engine of arithmetic, a tokenizer of characters."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.explorer.types import (
    Assignment,
    RolloutKind,
    WeightsId,
    WeightsRequirement,
    WeightsVersion,
)
from tests.support.said import said_logprobs
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.loading.load import load_config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.runtime.presence import Heartbeats
from trinity.runtime.rpc.channel import open_channel
from trinity.types import FinishReason, JsonObject, JsonValue, SamplingParams, StageKey
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta, Prompt, Scores
from trinity.workflows.messages import Message

EXPERIMENT_ID = "7d1f0c6e-7c3b-4f0e-9d2e-1b1c5a7f4a10"
KEY = StageKey(tenant="default", experiment_id=EXPERIMENT_ID, stage="main")


@dataclass
class ArithmeticEngine:
    """Tokens follow from prompt and seed alone, as an engine's must; `gate` holds them back."""

    num_tokens: int = 3
    loaded: list[Path] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    slots: list[ReceiverSlot] = field(default_factory=list)
    refusal: str = ""
    num_active: int = 0
    num_aborted: int = 0
    num_scored: int = 0
    gate: asyncio.Event | None = None
    died: Exception | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        self.seeds.append(sampling.seed)
        self.num_active += 1
        self.begun.set()
        try:
            await (self.gate.wait() if self.gate else asyncio.sleep(0))
            await self.check()
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise
        finally:
            self.num_active -= 1
        count = min(max(self.num_tokens, min_tokens), sampling.max_tokens)
        digest = hashlib.sha256(f"{prompt_token_ids}{sampling.seed}".encode()).digest()
        reason = FinishReason.LENGTH if count == sampling.max_tokens else FinishReason.STOP
        tokens = [97 + byte % 26 for byte in digest[:count]]
        text = bytes(tokens).decode()
        for stop in sampling.stop:
            if stop in text:
                tokens = tokens[: text.index(stop) + len(stop)]
        logprobs = said_logprobs(prompt_token_ids, tokens, len(self.loaded))
        likeliest = [
            [
                (token, -0.5 - rank - place / 4)
                for rank, token in enumerate(range(sampling.logprobs))
            ]
            for place in range(len(tokens) if sampling.logprobs else 0)
        ]
        if on_delta is not None:
            for place, token in enumerate(tokens):
                shown, own = likeliest[place : place + 1], logprobs[place : place + 1]
                on_delta(GenerationDelta(token_ids=[token], logprobs=own, likeliest=shown))
                await asyncio.sleep(0)
        return Generation(
            token_ids=tokens, logprobs=logprobs, finish_reason=reason, likeliest=likeliest
        )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """A token's number, by a hundred, is how unlikely it is."""
        self.num_scored += 1
        await (self.gate.wait() if self.gate else asyncio.sleep(0))
        likeliest = [
            (token, -0.25 - rank) for rank, token in enumerate(range(97, 97 + num_likeliest))
        ]
        return Scores(
            logprobs=[-token / 100 for token in token_ids[1:]],
            likeliest=[likeliest] * (len(token_ids) - 1) if likeliest else [],
        )

    async def load_weights(self, directory: Path) -> None:
        assert not self.num_active, "weights changed under a run"
        self.loaded.append(directory)

    receivers = Receivers(count=1, have_gpu=False)

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        assert not self.num_active, "weights changed under a run"
        self.slots.append(slot)
        return self.refusal

    async def check(self) -> None:
        if self.died is not None:
            raise self.died

    async def close(self) -> None:
        return None


class CharacterTokenizer:
    """One token a character."""

    vision = None

    template_sha256 = hashlib.sha256(b"template").digest()

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        named = f"tools:{json.dumps(list(tools))}\n" if tools else ""
        return self.encode(named + "".join(f"{m['role']}:{m['content']}\n" for m in messages))

    def encode(self, text: str) -> Prompt:
        return Prompt(text=text, token_ids=list(text.encode()))

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode()


def build_plan(folder: Path, **changes: JsonValue) -> ExperimentPlan:
    """A plan of one stage with rollout; `changes` are sections merged over it."""
    (folder / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    sections: JsonObject = {
        "project": "p",
        "name": "n",
        "mode": "both",
        "seed": 7,
        "checkpoint_root_dir": str(folder),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 2},
        "model": {
            "model_path": str(folder / "model"),
            "max_prompt_tokens": 32,
            "max_response_tokens": 6,
        },
        "buffer": {
            "batch_size": 4,
            "total_steps": 4,
            "explorer_input": {
                "taskset": {
                    "path": str(folder / "tasks.jsonl"),
                    "default_workflow_type": "simple_workflow",
                    "default_reward_fn_type": "exact_match_reward",
                    "format": {"prompt_key": "question", "response_key": "answer"},
                }
            },
        },
        "explorer": {
            "eval_on_startup": False,
            "max_retry_times": 1,
            "rollout_model": {"dtype": "float32"},
        },
    }
    path = folder / "config.yaml"
    path.write_text(_yaml(sections))
    return plan_experiment(load_config(path, changes))


def _yaml(sections: JsonObject) -> str:
    """JSON is YAML."""
    return json.dumps(sections)


def build_assignment(**changes: object) -> Assignment:
    """An assignment to train on; `changes` replace its fields."""
    values: dict[str, object] = {
        "id": "3f0e4a52-52a5-4a38-8a0c-64a8f1d3a001",
        "kind": RolloutKind.TRAIN,
        "explore_step": 1,
        "position": 0,
        "taskset": "taskset",
        "task_index": 0,
        "task_json": '{"question": "1+1=", "answer": "2"}',
        "runs": (0, 1),
        "first_attempt": 0,
        "lease_token": "token",
        "required": WeightsRequirement(version=0, incarnation=1, exact_version=False),
    }
    return Assignment(**(values | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def unheard_beats() -> AsyncIterator[Heartbeats]:
    """What a process says about itself, while nobody listens."""
    async with open_channel("127.0.0.1:9") as channel:
        yield Heartbeats(SynchronizerServiceStub(channel), member_id="me", role="explorer")


def build_weights(version: int, incarnation: int = 1) -> WeightsVersion:
    """Published weights whose content is their name."""
    name = f"v{version}-{incarnation}"
    return WeightsVersion(
        id=WeightsId(version=version, incarnation=incarnation),
        path=Path("/weights") / name,
        manifest_sha256=hashlib.sha256(name.encode()).digest(),
        weights_sha256=hashlib.sha256(b"content of " + name.encode()).digest(),
    )
