"""An agent loop of veRL with its tools, run as it is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from trinity.errors import UserError
from trinity.rewards.score import as_reward
from trinity.types import (
    Array,
    Experience,
    FloatArray,
    JsonObject,
    JsonValue,
    SamplingParams,
    VersionSpan,
)
from trinity.types import Sequence as TokenSequence
from trinity.workflows.experience_builder import distribution_of
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.turns import spans_of_turns
from trinity.workflows.verl_agents import (
    AGENT,
    MULTI_TURN,
    AgentRun,
    PolicyClient,
    PromptTooLongError,
    read_section,
    run_agent,
)

EXTRA_INFO = "extra_info"


class VerlAgentWorkflow(SimpleWorkflow):
    """Runs the loop that the row's `agent_name` names, else `agent.default_agent_loop`.

    `multi_turn` and `agent` are veRL's sections of these names, with its defaults: tools are those
    of `multi_turn.tool_config_path` and `function_tool_path`. The reward is the loop's own, else
    the taskset's for the whole conversation; a function of veRL's finds `num_turns`, `tool_rewards`
    and `turn_scores` in `extra_info`. Needs the package `verl` where explorers run.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset({"multi_turn", "agent"})
    usual_args: ClassVar[Mapping[str, JsonValue]] = {"multi_turn": {}, "agent": {}}

    async def run_async(self) -> list[Experience]:
        """Returns the whole conversation as one experience; the model's tokens are trained.

        A loop that samples its turns differently gives one for each way to sample, each with the
        tokens that were drawn that way.
        """
        client = PolicyClient(self.model)
        try:
            output = await run_agent(self._agent_run(client))
        except PromptTooLongError as error:
            self.scored_row = _row_after(self.task.raw_task, 1, {})
            await self._score(error.answer, self._reward())
            return [error.answer]
        experience = sample_of_output(output, client)
        experience.metrics |= _metrics_of(output)
        self.scored_row = _row_after(self.task.raw_task, output.num_turns, output.extra_fields)
        if output.reward_score is None:
            await self._score(experience, self._reward())
        else:
            experience.reward = as_reward(output.reward_score, type(self).__name__)
        return split_by_distribution(experience, client.answers)

    def _agent_run(self, client: PolicyClient) -> AgentRun:
        agent = self._section("agent", AGENT)
        row = self.task.raw_task
        return AgentRun(
            name=str(row.get("agent_name") or agent["default_agent_loop"]),
            client=client,
            multi_turn=self._section("multi_turn", MULTI_TURN),
            agent=agent,
            row=_row_of_verl(row, self.messages(), self.task.row),
        )

    def _section(self, name: str, usual: JsonObject) -> JsonObject:
        """Returns a section with veRL's defaults.

        Raises: UserError for a key that veRL's loops do not know.
        """
        try:
            return read_section(self.task.workflow_args, name, usual)
        except UserError as error:
            where = f"taskset {self.task.taskset!r}: {type(self).__name__}"
            raise UserError(f"{where}: {error}") from error


def _row_after(row: JsonObject, num_turns: int, fields: Mapping[str, Any]) -> JsonObject:
    """Returns the row with what veRL adds to `extra_info` for rewards."""
    own = row.get(EXTRA_INFO)
    info: JsonObject = {**own} if isinstance(own, dict) else {}
    info |= {"num_turns": num_turns, "rollout_reward_scores": {}}
    info |= {"tool_rewards": [], "turn_scores": [], **_plain(fields)}
    return {**row, EXTRA_INFO: info}


def _row_of_verl(row: JsonObject, messages: Any, index: int) -> dict[str, Any]:
    """Returns a row as veRL's data set gives it to loops."""
    info = row.get(EXTRA_INFO)
    extra = info if isinstance(info, dict) else {}
    columns = {name: value for name, value in row.items() if name != "agent_name"}
    return {
        **columns,
        EXTRA_INFO: extra,
        "raw_prompt": messages,
        "index": extra.get("index", index),
        "tools_kwargs": _without_nulls(extra.get("tools_kwargs")),
        "interaction_kwargs": _without_nulls(extra.get("interaction_kwargs")),
    }


def _without_nulls(value: JsonValue) -> JsonObject:
    """Returns a section without the keys that other rows have: parquet fills them with nulls."""
    if not isinstance(value, dict):
        return {}
    return {
        name: _without_nulls(inner) if isinstance(inner, dict) else inner
        for name, inner in value.items()
        if inner is not None
    }


def sample_of_output(output: Any, client: PolicyClient) -> Experience:
    """Returns the sample of a conversation, with the engine's tokens and log-probabilities.

    Raises: UserError when the loop trains a token that the engine did not generate.
    """
    tokens = np.array([*output.prompt_ids, *output.response_ids], dtype=np.int32)
    start = len(output.prompt_ids)
    mask = np.array(output.response_mask, dtype=np.bool_)
    logprobs = _logprobs_of(tokens, start, client.answers)
    if np.isnan(logprobs[mask]).any() or not client.answers:
        raise UserError(
            "an agent loop of veRL's trains tokens that the engine did not generate at their place "
            "in this run: keep the token ids that `server_manager.generate` returned"
        )
    body = TokenSequence(
        tokens=tokens,
        prompt_length=start,
        action_mask=mask,
        rollout_logprobs=np.where(mask, logprobs, np.float32(0)),
        prompt_text=client.model.text_of(output.prompt_ids),
        response_text=client.model.text_of(output.response_ids),
    )
    last = client.answers[-1]
    arrays: dict[str, Array] = {}
    return replace(last, body=body, version_spans=_spans_of(body, client.answers), arrays=arrays)


def _spans_of(body: TokenSequence, answers: list[Experience]) -> tuple[VersionSpan, ...]:
    """Returns the weights that drew the answers; text before an answer belongs to it."""
    offsets = []
    for answer in answers:
        place = _place(answer, body.tokens, body.prompt_length)
        if place is not None:
            offsets.append((place.start, answer))
    spans = [
        replace(span, end=min(span.end, body.response_length))
        for span in spans_of_turns(offsets)
        if span.start < body.response_length
    ]
    last = spans.pop() if spans else answers[-1].version_spans[-1]
    return (*spans, replace(last, start=spans[-1].end if spans else 0, end=body.response_length))


def split_by_distribution(sample: Experience, answers: list[Experience]) -> list[Experience]:
    """Returns a sample for each distribution that its answers were drawn from, usually one.

    Each has all tokens of the conversation, and in its mask those that were drawn that way.
    """
    sequence = sample.sequence
    ways: list[SamplingParams | None] = []
    way_R = np.full(sequence.response_length, -1)
    for answer in answers:
        way = distribution_of(answer.sampling)
        ways += [] if way in ways else [way]
        place = _place(answer, sequence.tokens, sequence.prompt_length)
        if place is not None:
            way_R[place] = ways.index(way)
    samples = []
    for number, way in enumerate(ways):
        mask = sequence.action_mask & (way_R == number)
        drawn = next(
            answer for answer in reversed(answers) if distribution_of(answer.sampling) == way
        )
        if mask.any():
            logprobs = np.where(mask, sequence.rollout_logprobs, np.float32(0))
            body = replace(sequence, action_mask=mask, rollout_logprobs=logprobs)
            samples.append(replace(sample, body=body, sampling=drawn.sampling))
    return samples or [sample]


def _logprobs_of(tokens: Any, start: int, answers: list[Experience]) -> FloatArray:
    """Returns log-probabilities of the response; NaN for tokens not from the engine."""
    logprobs = np.full(len(tokens) - start, np.nan, dtype=np.float32)
    for answer in answers:
        place = _place(answer, tokens, start)
        if place is not None:
            logprobs[place] = answer.sequence.rollout_logprobs[: place.stop - place.start]
    return logprobs


def _place(answer: Experience, tokens: Any, start: int) -> slice | None:
    """Returns where in the response the tokens of an answer stand; None if nowhere."""
    sequence = answer.sequence
    first, end = sequence.prompt_length, min(len(sequence.tokens), len(tokens))
    if not start <= first <= end or not np.array_equal(sequence.tokens[:first], tokens[:first]):
        return None
    differs = np.flatnonzero(sequence.tokens[first:end] != tokens[first:end])
    return slice(first - start, (first + int(differs[0]) if len(differs) else end) - start)


def _metrics_of(output: Any) -> dict[str, float]:
    """Returns the numbers of a conversation as metrics."""
    fields = output.extra_fields
    sums = {name: fields.get(name) or [] for name in ("tool_rewards", "turn_scores")}
    return {
        "num_turns": float(output.num_turns),
        **{name: float(sum(values)) for name, values in sums.items() if values},
    }


def _plain(fields: Mapping[str, Any]) -> JsonObject:
    """Returns the fields that are numbers, texts or lists of them."""
    kinds = (bool, int, float, str, list, dict, type(None))
    return {str(name): value for name, value in fields.items() if isinstance(value, kinds)}
