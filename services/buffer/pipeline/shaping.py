"""Computes the results of groups: operators in order, then the advantage function."""

import asyncio
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Value

from services.buffer.domain.group import GroupOutcome, SampleDetail, SampleGroup
from services.buffer.domain.operators import FunctionChain, GroupArrays, PipelineFunction
from services.buffer.domain.stage import Stage
from services.buffer.store.database import BufferDatabase
from services.buffer.store.experiences import load_bodies, load_raw_samples
from services.buffer.store.pipeline import Claim, GroupResult
from services.buffer.workers.functions import FunctionFailed, FunctionRunner
from trinity.algorithm.advantage.needs import Needs
from trinity.algorithm.advantage.samples import Advantages
from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import finish_reason_of, sequence_from_proto, tensor_from_proto
from trinity.operators.rollouts import Content
from trinity.runtime.presence import WaitRegistry
from trinity.types import StageKey

SHOWN_AFTER_SECONDS = 1.0
READ_AT_ONCE = 256
"""Whole samples that are in memory together."""
NOTHING_TO_COMPARE = Advantages(np.zeros(0))


def read_details(bodies: Iterable[bytes], needs: Needs) -> list[SampleDetail]:
    """Returns the needed values of each sample, in the same order."""
    return [
        SampleDetail(
            mean_logprob=_mean_logprob(message) if needs.mean_logprobs else math.nan,
            step_reward=_number(message, needs.step_reward_key),
            state=_state(message, needs.state_key),
            numbers={key: _number(message, key) for key in needs.numbers},
            content=_content(message) if needs.content else None,
        )
        for message in map(pb.Experience.FromString, bodies)
    ]


def _content(message: pb.Experience) -> Content:
    body = message.sequence if message.HasField("sequence") else message.pair.chosen
    return Content(
        prompt_text=body.prompt_text,
        response_text=body.response_text,
        info=MessageToDict(message.info),
        metrics={**message.metrics, **message.reward_parts},
        finish_reason=finish_reason_of(message),
    )


def _mean_logprob(message: pb.Experience) -> float:
    """Returns the mean over the trained tokens, or 0 without any."""
    body = message.sequence if message.HasField("sequence") else message.pair.chosen
    sequence = sequence_from_proto(body)
    own = sequence.rollout_logprobs[sequence.action_mask]
    return float(np.mean(own, dtype=np.float64)) if len(own) else 0.0


def _number(message: pb.Experience, key: str) -> float:
    """Returns the number under the key, or NaN."""
    if not key:
        return math.nan
    if key in message.info:
        value = message.info.fields[key]
        kind = value.WhichOneof("kind")
        if kind == "bool_value":
            return float(value.bool_value)
        return value.number_value if kind == "number_value" else math.nan
    for numbers in (message.metrics, message.reward_parts):
        if key in numbers:
            return numbers[key]
    if key in message.arrays:
        data = tensor_from_proto(message.arrays[key]).data
        return float(data.sum()) if data.size == 1 else math.nan
    return math.nan


def _state(message: pb.Experience, key: str) -> str:
    """Returns a text that is equal for equal values under the key; empty without a value."""
    if not key:
        return ""
    if key in message.info:
        return _text(message.info.fields[key])
    if key in message.metrics:
        return repr(message.metrics[key])
    if key in message.arrays:
        tensor = message.arrays[key]
        digest = hashlib.sha256(tensor.data).hexdigest()
        return f"{tensor.dtype} {list(tensor.shape)} {digest}"
    return ""


def _text(value: Value) -> str:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return repr(value.number_value)
        case "null_value" | None:
            return ""
        case _:
            return value.SerializeToString(deterministic=True).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """Groups that functions process in one call."""

    claims: Sequence[Claim]
    arrays: GroupArrays

    def results(self, chain: FunctionChain, outcomes: Sequence[GroupOutcome]) -> list[GroupResult]:
        """Returns the result of each group; for a whole explore step, one error fails all."""
        failed = next((outcome for outcome in outcomes if outcome.error), None)
        if failed and chain.needs.whole_step:
            outcomes = [failed for _ in outcomes]
        return [
            GroupResult(claim=claim, operator=chain.advantage.name, outcome=outcome)
            for claim, outcome in zip(self.claims, outcomes, strict=True)
        ]

    def failed_results(
        self, chain: FunctionChain, operator: PipelineFunction, error: str
    ) -> list[GroupResult]:
        """Returns the groups as failed."""
        function = operator.title if operator.kind == "operator" else ""
        outcome = GroupOutcome(error=error, function=function)
        return self.results(chain, [outcome for _ in self.claims])


@dataclass(slots=True, kw_only=True)
class GroupComputation:
    """Parts that go from function to function, and the results of finished ones."""

    chain: FunctionChain
    batches: list[GroupBatch]
    done: list[GroupResult] = field(default_factory=list)

    def apply_operator(self, operator: PipelineFunction, answers: Sequence[Any]) -> None:
        """Continues with the samples that an operator left; drops parts that were not tried."""
        going = []
        for part, answer in zip(self.batches, answers, strict=False):
            try:
                if isinstance(answer, str):
                    raise ValueError(answer)
                comparison = part.arrays.with_changes(operator.name, answer)
                going.append(replace(part, arrays=comparison))
            except ValueError as error:
                self.done += part.failed_results(self.chain, operator, str(error))
        self.batches = going

    def apply_advantages(self, answers: Sequence[Any]) -> None:
        """Finishes the parts with their advantages."""
        for part, answer in zip(self.batches, answers, strict=False):
            try:
                if isinstance(answer, str):
                    raise ValueError(answer)
                self.done += part.results(self.chain, part.arrays.outcomes(answer))
            except ValueError as error:
                self.done += part.failed_results(self.chain, self.chain.advantage, str(error))
        self.batches = []

    def finish_empty(self) -> None:
        """Finishes parts without samples, which need no function."""
        empty = [part for part in self.batches if not part.arrays.ids]
        asked = [part for part in self.batches if part.arrays.ids]
        self.batches = empty
        self.apply_advantages([NOTHING_TO_COMPARE for _ in empty])
        self.batches = asked


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageComputer:
    """Computes results for groups without changing the database."""

    database: BufferDatabase
    functions: FunctionRunner
    waits: WaitRegistry

    async def load_functions(self, stage: Stage) -> FunctionChain:
        """Returns the stage's functions with their needs; load errors surface when called."""
        chain = FunctionChain.from_plan(stage.plan)
        tenant = stage.key.tenant
        operators = [await self._with_needs(tenant, operator) for operator in chain.operators]
        return FunctionChain(
            operators=tuple(operators), advantage=await self._with_needs(tenant, chain.advantage)
        )

    async def _with_needs(self, tenant: str, operator: PipelineFunction) -> PipelineFunction:
        try:
            return replace(operator, needs=await self.functions.needs(tenant, operator))
        except FunctionFailed:
            return operator

    async def compute_groups(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> list[GroupResult]:
        """Returns the results of these groups; missing groups were not tried."""
        groups = await self._load_groups(stage.key, claims)
        details = await self._load_details(stage.key, chain, groups)
        parts = await asyncio.to_thread(_batches, chain, claims, groups, details, stage.seed)
        work = GroupComputation(chain=chain, batches=parts)
        for operator in chain.functions:
            work.finish_empty()
            samples = [part.arrays.samples for part in work.batches]
            with self._show_wait(operator, claims):
                answers = await self.functions.call_function(
                    stage.key.tenant,
                    operator,
                    samples,
                    partial(self._read, stage.key, work.batches),
                )
            if operator.kind == "operator":
                await asyncio.to_thread(work.apply_operator, operator, answers)
            else:
                await asyncio.to_thread(work.apply_advantages, answers)
        return work.done

    async def _read(
        self, key: StageKey, batches: Sequence[GroupBatch], part: int, places: Sequence[int]
    ) -> list[bytes]:
        """Returns the wire bytes of samples of a part, for a function that reads them."""
        ids = batches[part].arrays.ids
        async with self.database.transaction() as connection:
            return await load_bodies(connection, key, [ids[place] for place in places])

    def _show_wait(
        self, operator: PipelineFunction, claims: Sequence[Claim]
    ) -> AbstractContextManager[None]:
        what = f"{len(claims)} groups, the first of assignment {claims[0].assignment_id}"
        kind = "experience operator" if operator.kind == "operator" else "advantage function"
        return self.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_=kind,
            reason=f"{operator.name} to shape {what}",
            deadline_seconds=0.0 if operator.is_built_in else self.functions.limit_seconds,
        )

    async def _load_groups(self, key: StageKey, claims: Sequence[Claim]) -> list[SampleGroup]:
        ids = [claim.assignment_id for claim in claims]
        async with self.database.autocommit() as connection:
            samples = await load_raw_samples(connection, key, ids)
        return [
            SampleGroup(
                explore_step=claim.explore_step,
                position=claim.position,
                samples=samples[claim.assignment_id],
            )
            for claim in claims
        ]

    async def _load_details(
        self, key: StageKey, chain: FunctionChain, groups: Sequence[SampleGroup]
    ) -> dict[str, SampleDetail]:
        """Returns values of whole samples that the functions need, by experience."""
        if not chain.needs.reads_samples:
            return {}
        ids = [sample.experience_id for group in groups for sample in group.compared]
        details: dict[str, SampleDetail] = {}
        for first in range(0, len(ids), READ_AT_ONCE):
            chunk = ids[first : first + READ_AT_ONCE]
            async with self.database.transaction() as connection:
                bodies = await load_bodies(connection, key, chunk)
            read = await asyncio.to_thread(read_details, bodies, chain.needs)
            details |= zip(chunk, read, strict=True)
        return details


def _batches(
    chain: FunctionChain,
    claims: Sequence[Claim],
    groups: Sequence[SampleGroup],
    details: Mapping[str, SampleDetail],
    seed: int,
) -> list[GroupBatch]:
    """Returns one part for all groups, or one for each."""
    size = len(groups) if chain.takes_many_groups else 1
    return [
        GroupBatch(
            claims=claims[first : first + size],
            arrays=GroupArrays.from_groups(groups[first : first + size], details, seed),
        )
        for first in range(0, len(groups), size)
    ]
