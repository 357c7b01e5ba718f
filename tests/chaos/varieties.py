"""The kinds of experiment that a campaign has under fire, each with what must hold at its end.

| variety | what it adds |
|---|---|
| plain | a selector that learns, contents that are removed |
| visited | rewards that come later or never, samples taken out and put back, tasksets brought |
| replayed | samples that are trained more than once |
| piped | tasks that go through a pipeline of one's own before any is drawn |
| retrained | the recorded batches, trained again by another experiment |
| explored | experiences of a run without a trainer, which another run trains on |
| measured | evaluations, with the figures that they would have had |
| halved | versions in half precision, seven of eight as differences |
| colocated | engine and trainer share a device |
| transferred | weights that go from memory to memory, with the files behind them |
| tasks_file, tasks_sql | a file or table of tasks that others change after the stage has opened |
| queue | tasks that a client submits bit by bit, while it brings and deletes tasksets |
| two_hosts | a gang over two trainer services, of which one leads |
| offset, explorer_driven, ... | weights that are chosen in another way: no promise which |
| sink_file, sink_sqlite, sink_sql | experiences that are written elsewhere too, each once |
| alone | one task a step: how soon a process is back at work that has next to none |
| in_flight | weights that change amid requests: each token was drawn by those that its span names |
| talking | agents of forty turns, whose answers are kept |
| seeing | tasks with images, of a file and of a client |
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pydantic import JsonValue

from tests.chaos import seeing, sinks, tasksets
from tests.chaos.arena import Arena
from tests.chaos.checks import Findings, findings
from tests.chaos.journals import LOADS
from tests.chaos.recovery import ALONE, TWO_HOSTS
from tests.chaos.retrained import differences, retrain
from tests.chaos.snapshot import Evaluation, Snapshot
from tests.chaos.talking import talk_findings, talking_plan
from tests.support.model_free.experiment import experiment_plan, final_weights
from tests.support.model_free.model import read_digest
from tests.support.model_free.slots import SLOTS, wrong_tokens
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.experience_pb2 import Experience as Content
from trinity.config.plan.parts import StoredRollouts
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.data.codec import experience_from_proto
from trinity.types import Experience, VersionSpan

NUM_STEPS = 8
EXPLORED_STEPS = 4
TALKING_STEPS = 2
TAKEN = """
    SELECT e.experience_id, e.state, count(i.experience_id) AS uses FROM experience e
    LEFT JOIN batch_item i ON i.experience_id = e.experience_id AND i.experiment_id = %(taker)s
    WHERE e.experiment_id = %(source)s AND e.state <> 'derived' GROUP BY 1, 2
"""
PIPELINE: JsonValue = {
    "operators": [{"name": "tests.chaos.own_operators.every_other", "args": {"weigh": "weak"}}],
    "priority_weights": {"odd": 1.0},
}
REPLAY: JsonValue = {
    "enable": True,
    "reuse_cooldown_time": 2,
    "priority_fn": "decay_limit_randomization",
    "priority_fn_args": {"decay": 0.5, "use_count_limit": 2},
}


STORED_CONTENTS = "SELECT body FROM buffer.payload WHERE experiment_id = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of an experiment."""

    weights: str
    found: Findings
    num_repeated_steps: int = 0
    """Steps that more than one life of a trainer trained."""
    num_swaps: int = 0
    """Versions that an engine took amid its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An experiment that is to be played; without `expected` it says what others shall end with."""

    arena: Arena
    name: str
    expected: str = ""
    end_seconds: float
    num_steps: int = NUM_STEPS

    async def one(
        self, *, name: str = "", expected: str = "", **changes: Any
    ) -> tuple[pb.Experiment, Played]:
        """An experiment of one stage, with all checks."""
        ended, snapshot = await self.recorded(
            name or self.name, expected=expected or self.expected, **changes
        )
        return ended, _played(snapshot)

    async def recorded(
        self, name: str, *, expected: str, **changes: Any
    ) -> tuple[pb.Experiment, Snapshot]:
        """The same, with what is on record of it."""
        ended = await self.arena.run(
            name, num_steps=self.num_steps, end_seconds=self.end_seconds, **changes
        )
        weights = expected or final_weights(ended)
        snapshot = await asyncio.to_thread(self.arena.snapshot_when_up, ended, weights)
        return ended, snapshot


def _played(snapshot: Snapshot) -> Played:
    reports = [one for one in snapshot.commits if one.what == "report"]
    return Played(
        weights=snapshot.weights,
        found=findings(snapshot),
        num_repeated_steps=len(reports) - len({one.number for one in reports}),
    )


async def _one_stage(play: Play, **changes: Any) -> Played:
    """The usual experiment, with a setting or two that differ."""
    return (await play.one(**changes))[1]


def _also(played: Played, check: str, sentences: list[str]) -> Played:
    """Adds what a check of this kind alone has found."""
    return replace(played, found={**played.found, **({check: sentences} if sentences else {})})


async def _replayed(play: Play) -> Played:
    rows: JsonValue = {"experience_buffer": {"replay_buffer": REPLAY}}
    return (await play.one(buffer={"train_batch_size": 12, "trainer_input": rows}))[1]


async def _piped(play: Play) -> Played:
    in_order: JsonValue = {"taskset": {"data_selector": {"selector_type": "sequential"}}}
    ended = await play.one(
        buffer={"explorer_input": in_order}, data_processor={"task_pipeline": PIPELINE}
    )
    return ended[1]


async def _retrained(play: Play) -> Played:
    """The source has the weights of any plain experiment; so must what is trained again."""
    ended, source = await play.one(name=f"{play.name}-source", buffer={"keep_steps": None})
    again = await retrain(
        play.arena, ended, play.name, num_steps=NUM_STEPS, end_seconds=play.end_seconds
    )
    other = differences(play.arena, ended, again) if again.reason == "" else [again.reason]
    if final_weights(again) != source.weights:
        other.append("the weights are others than those of the source")
    return _also(source, "trained_again", other)


async def _explored(play: Play) -> Played:
    source = _explore_plan(play)
    looked = await play.arena.run_plan(source, end_seconds=play.end_seconds)
    plan = _taking_plan(play, source, looked)
    taker = await play.arena.run_plan(plan, end_seconds=play.end_seconds)
    weights = final_weights(taker)
    found = await asyncio.to_thread(_taken_wrongly, play.arena, looked, taker)
    if play.expected and weights != play.expected:
        found.append(f"it ended in the weights {weights[:12]} instead of {play.expected[:12]}")
    return Played(weights=weights, found={"taken_once": found} if found else {})


def _explore_plan(play: Play) -> ExperimentPlan:
    name = f"{play.name}-source"
    stage: JsonValue = {
        "stage_name": "look",
        "mode": "explore",
        "algorithm": {"repeat_times": 2, "kl_loss_fn": "none"},
    }
    return experiment_plan(
        play.arena.root / name, name=name, stages=[stage], buffer={"total_steps": EXPLORED_STEPS}
    )


def _taking_plan(play: Play, source: ExperimentPlan, looked: pb.Experiment) -> ExperimentPlan:
    stage: JsonValue = {
        "stage_name": "learn",
        "mode": "train",
        "algorithm": {"repeat_times": 2, "kl_loss_fn": "none"},
    }
    rows: JsonValue = {"experience_buffer": {"source_run": source.label}}
    plan = experiment_plan(
        play.arena.root / play.name,
        name=play.name,
        stages=[stage],
        buffer={"total_steps": None, "trainer_input": rows},
    )
    stored = StoredRollouts(experiment_id=looked.id, stage="look", run=source.label)
    [learn] = plan.stages
    return plan.model_copy(
        update={"stages": (learn.model_copy(update={"stored_rollouts": stored}),)}
    )


async def _measured(play: Play) -> Played:
    """What it shall end with are its weights and, after a blank, its figures."""
    weights, _, expected = play.expected.partition(" ")
    ended, played = await play.one(expected=weights, measured=True)
    figures = await asyncio.to_thread(_figures, play.arena, ended)
    other = [f"its figures are {figures} instead of {expected}"] if expected != figures else []
    measured = replace(played, weights=f"{played.weights} {figures}")
    return _also(measured, "measured_the_same", other if expected else [])


async def _talking(play: Play) -> Played:
    plan = talking_plan(play.arena, play.name, num_steps=TALKING_STEPS)
    ended = await play.arena.run_plan(plan, end_seconds=play.end_seconds)
    weights = play.expected or final_weights(ended)
    played = _played(await asyncio.to_thread(play.arena.snapshot_when_up, ended, weights))
    talked = await asyncio.to_thread(talk_findings, play.arena, ended)
    return replace(played, found={**played.found, **talked})


async def _seeing(play: Play) -> Played:
    taskset = await asyncio.to_thread(seeing.taskset_in, play.arena.root / play.name)
    await asyncio.to_thread(seeing.insert_unused, play.arena)
    bringing = asyncio.create_task(seeing.bring_images(play.arena, play.name))
    rows: dict[str, JsonValue] = {"explorer_input": {"taskset": taskset}, "keep_steps": None}
    ended, played = await play.one(buffer=rows)
    wrong = await bringing + await asyncio.to_thread(seeing.wrong_images, play.arena, ended.id)
    return _also(played, "images_are_there", wrong)


async def _changing(play: Play, kind: str) -> Played:
    """It keeps the rows that were there when its stage was opened."""
    make = tasksets.PLACES[kind]
    taskset, change = await asyncio.to_thread(make, play.arena, play.name)
    changing = asyncio.create_task(tasksets.keep_changing(play.arena, play.name, change))
    try:
        return await _one_stage(play, buffer={"explorer_input": {"taskset": taskset}})
    finally:
        changing.cancel()


async def _queued(play: Play) -> Played:
    rows: JsonValue = {"explorer_input": {"taskset": tasksets.queue_in(play.arena, play.name)}}
    feeding = asyncio.create_task(tasksets.feed(play.arena, play.name))
    played = await _one_stage(play, tenant=play.name, buffer=rows)
    return _also(played, "queue_is_whole", await feeding)


def _figures(arena: Arena, ended: pb.Experiment) -> str:
    """Rewards by version, to the last digit."""
    evaluations = arena.snapshot_when_up(ended, "").evaluations
    return ",".join(f"{one.version}:{one.reward!r}" for one in sorted(evaluations, key=_version_of))


def _version_of(one: Evaluation) -> int:
    return one.version


async def _in_flight(play: Play) -> Played:
    """Timing decides which weights draw a token, so no two end in the same ones."""
    plan = experiment_plan(
        play.arena.root / play.name / SLOTS,
        name=play.name,
        num_tasks=16,
        model={"max_prompt_tokens": 100, "max_response_tokens": 200, "max_model_len": 300},
        buffer={"total_steps": play.num_steps},
        explorer={
            "eval_on_startup": False,
            "max_inflight_batches": 4,
            "rollout_model": {"engine_num": 2},
        },
        synchronizer={"sync_style": "fully_async"},
    )
    ended = await play.arena.run_plan(plan, end_seconds=play.end_seconds)
    weights = final_weights(ended)
    snapshot = await asyncio.to_thread(play.arena.snapshot_when_up, ended, weights)
    played = _played(snapshot)
    lies = await asyncio.to_thread(_wrong_spans, play.arena, ended, Path(plan.stages[0].model_path))
    return _also(replace(played, num_swaps=len(snapshot.loads)), "tokens_are_their_spans", lies)


def _wrong_spans(arena: Arena, ended: pb.Experiment, model: Path) -> list[str]:
    """Samples with tokens that the weights of their span would not have drawn."""
    digests = {
        Path(line["path"]).name: bytes.fromhex(line["digest"])
        for line in arena.folder.read(LOADS)
        if line["path"].startswith(f"{model.parent}/")
    }

    def digest_of(span: VersionSpan) -> bytes:
        start = {} if span.version else {"v0": read_digest(model)}
        return digests.get(f"v{span.version}-{span.incarnation}") or start["v0"]

    with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
        bodies = connection.execute(STORED_CONTENTS, [ended.id]).fetchall()
    samples = [experience_from_proto(Content.FromString(body)) for (body,) in bodies]
    assert any(len(sample.version_spans) > 1 for sample in samples), "no weights came amid requests"
    wrong = [(sample.eid, _num_wrong(sample, digest_of)) for sample in samples]
    return [f"{number} tokens of {eid} lie about their weights" for eid, number in wrong if number]


def _num_wrong(sample: Experience, digest_of: Callable[[VersionSpan], bytes]) -> int:
    assert sample.sampling is not None
    tokens, begin = sample.sequence.tokens.tolist(), sample.sequence.prompt_length
    return wrong_tokens(tokens, begin, sample.version_spans, sample.sampling.seed, digest_of)


def _taken_wrongly(arena: Arena, looked: pb.Experiment, taker: pb.Experiment) -> list[str]:
    """Experiences that were not trained on once, or that their own run would not know again."""
    ids = {"source": looked.id, "taker": taker.id}
    with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
        rows = connection.execute(TAKEN, ids).fetchall()
    num_wanted = EXPLORED_STEPS * 4 * 2
    found = [
        f"{one[:8]} is {state} and in {uses} batches"
        for one, state, uses in ((str(row[0]), row[1], row[2]) for row in rows)
        if (state, uses) != ("ready", 1)
    ]
    reasons = [one.reason for one in (looked, taker) if one.reason]
    lack = [f"{len(rows)} experiences instead of {num_wanted}"] if len(rows) != num_wanted else []
    return [*reasons, *found, *lack]


async def _unordered(play: Play, **changes: Any) -> Played:
    """Which weights make which run depends on the moment, so any end is right."""
    return await _one_stage(replace(play, expected=""), **changes)


async def _sunk(play: Play, kind: str) -> Played:
    place = await asyncio.to_thread(sinks.PLACES[kind], play.arena, play.name)
    rows: JsonValue = {"experience_buffer": {"path": place}}
    _, snapshot = await play.recorded(
        play.name, expected=play.expected, buffer={"keep_steps": None, "trainer_input": rows}
    )
    played = _played(snapshot)
    return replace(played, found={**played.found, **await sinks.differences(place, snapshot)})


UNORDERED: Mapping[str, Callable[[Play], Awaitable[Played]]] = {
    "offset": partial(_unordered, sync_offset=1),
    **{
        style: partial(_unordered, sync_style=style)
        for style in ("explorer_driven", "trainer_driven")
    },
    "in_flight": _in_flight,
}
VARIETIES: Mapping[str, Callable[[Play], Awaitable[Played]]] = {
    "visited": partial(_one_stage, visited=True),
    "plain": _one_stage,
    "replayed": _replayed,
    "piped": _piped,
    "retrained": _retrained,
    "explored": _explored,
    "measured": _measured,
    ALONE: partial(_one_stage, buffer={"batch_size": 1}),
    "halved": partial(_one_stage, dtype="bfloat16"),
    "colocated": partial(_one_stage, colocated=True),
    "transferred": partial(_one_stage, sync_method="nccl"),
    **{kind: partial(_changing, kind=kind) for kind in tasksets.PLACES},
    "queue": _queued,
    **{kind: partial(_sunk, kind=kind) for kind in sinks.PLACES},
    **UNORDERED,
    "talking": _talking,
    "seeing": _seeing,
    TWO_HOSTS: partial(_one_stage, rank_num=2),
}
SHORT = ("visited", "plain")
"""Those of a campaign of a minute or two."""
