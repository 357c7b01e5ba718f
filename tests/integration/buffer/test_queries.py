"""Looking into the buffer: pages, filters, one sample whole, what moved a step."""

import base64
from pathlib import Path

import grpc
import psycopg
import pytest

from services.buffer.domain.tasks import SampleFilter
from services.buffer.store.queries import StepRange, steps_of_versions
from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.impatient import impatient_database
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import data_plan, mixed_plan, rollout_plan
from tests.integration.buffer.trainer_side import TOKENS
from trinity.api.v1 import query_pb2 as pb
from trinity.api.v1.buffer_pb2 import ASSIGNMENT_KIND_EVAL
from trinity.data.codec import experience_from_proto

BATCHED = pb.EXPERIENCE_STATE_BATCHED


async def first_step(buffer: Buffer, tmp_path: Path, **plan: int) -> None:
    """The rewards of step 1 are 0 and 1 for each of the three tasks."""
    await buffer.open(rollout_plan(tmp_path, **plan))  # type: ignore[arg-type]
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)


async def test_a_sample_is_shown_once_with_all_that_became_of_it(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    await buffer.report(1)
    records = await looking.list()
    assert [(one.eid.position, one.eid.run) for one in records] == [
        (position, run) for position in range(3) for run in range(2)
    ]
    first = records[0]
    assert (first.state, first.taskset, first.task_index, first.reward) == (BATCHED, "train", 0, 0)
    assert (first.version_min, first.version_max) == (0, 0)
    [use] = first.uses
    assert (use.step, use.position, use.mean_ratio, use.trained_advantage) == (1, 0, 1.5, 0.25)
    assert use.advantage == first.advantage < 0
    assert not first.HasField("content")
    assert not use.HasField("tokens")
    [whole] = (await looking.get(first.id)).experience.uses
    assert whole.tokens == TOKENS
    [other] = (await looking.get(records[1].id)).experience.uses
    assert not other.HasField("tokens")


async def test_pages_give_every_sample_once_however_small_they_are(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    whole = [one.id for one in await looking.list()]
    cursor, seen = "", []
    while page := await looking.list(limit=1, cursor=cursor):
        seen += [one.id for one in page]
        cursor = looking.cursor
    assert seen == whole


async def test_the_latest_groups_come_first_if_that_is_asked_for(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    records = await looking.list(latest_first=True)
    assert [(one.eid.position, one.eid.run) for one in records] == [
        (position, run) for position in (2, 1, 0) for run in range(2)
    ]


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        (pb.ExperienceFilter(reward_min=0.5), ["1/0/1", "1/1/1", "1/2/1"]),
        (pb.ExperienceFilter(reward_max=0.5, task_index=2), ["1/2/0"]),
        (pb.ExperienceFilter(text="1/1/0"), ["1/1/0"]),
        (pb.ExperienceFilter(text='"2+2="'), ["1/2/0", "1/2/1"]),
        (pb.ExperienceFilter(text="nowhere"), []),
        (pb.ExperienceFilter(version_min=1), []),
        (pb.ExperienceFilter(explore_step=2), []),
        (pb.ExperienceFilter(train_step=1, reward_min=1), ["1/0/1", "1/1/1", "1/2/1"]),
        (
            pb.ExperienceFilter(train_step=1, train_step_last=2, reward_min=1),
            ["1/0/1", "1/1/1", "1/2/1"],
        ),
        (pb.ExperienceFilter(train_step=2), []),
        (pb.ExperienceFilter(train_step=2, train_step_last=9), []),
        (pb.ExperienceFilter(taskset="other"), []),
        (pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_READY]), []),
    ],
)
async def test_only_what_satisfies_every_condition_is_shown(
    buffer: Buffer,
    looking: Looking,
    tmp_path: Path,
    wanted: pb.ExperienceFilter,
    places: list[str],
) -> None:
    await first_step(buffer, tmp_path)
    records = await looking.list(wanted, with_content=True)
    assert [one.content.sequence.response_text for one in records] == places


async def test_bytes_of_tokens_are_not_taken_for_text(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    assert await looking.list(pb.ExperienceFilter(text="\x03"), with_content=True) == []


async def test_a_sample_comes_whole_by_the_beginning_of_its_id(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    [listed, *_] = await looking.list()
    answer = await looking.get(listed.id[:12])
    assert answer.experience.id == listed.id
    assert answer.run_seconds == 0.5
    sample = experience_from_proto(answer.experience.content)
    assert sample.sequence.rollout_logprobs.tolist() == [-0.5] * 3
    assert sample.version_spans[0].end == 3
    assert await looking.get(listed.id.replace("-", "").upper()) == answer


@pytest.mark.parametrize("text", ["-", "0" * 33, "0" * 36, "0123-4567"])
async def test_what_no_id_begins_with_is_refused_by_the_path_of_its_field(
    buffer: Buffer, looking: Looking, tmp_path: Path, text: str
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    with pytest.raises(grpc.aio.AioRpcError, match=f"experience_id '{text}'") as error:
        await looking.get(text)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_step_tells_which_samples_moved_it_with_which_advantage(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    await buffer.report(1, loss=0.25)
    await buffer.record(1, b"\x09" * 32)
    head, rows = await looking.step(1)
    assert (head.num_rows, head.incarnation) == (6, 1)
    assert (head.weights_before.version, head.weights_after.version) == (0, 1)
    assert head.weights_after.weights_sha256 == b"\x09" * 32
    assert [dict(one.metrics) for one in head.trained] == [{"loss": 0.25}]
    assert [row.use.position for row in rows] == list(range(6))
    assert rows[0].use.trained_advantage == 0.25
    assert rows[0].experience.task_index == 0
    assert rows[5].experience.reward == 1


async def test_a_step_of_training_data_tells_its_rows(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(data_plan(tmp_path, selector="sequential"))
    await buffer.begin()
    await buffer.batch(1)
    _, rows = await looking.step(1)
    assert [(row.row_index, row.row_json[:16]) for row in rows[:2]] == [
        (0, '{"prompt": "0+0='),
        (1, '{"prompt": "1+1='),
    ]


async def test_a_mixed_step_tells_both_kinds_of_rows(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(mixed_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    _, rows = await looking.step(1)
    assert {row.WhichOneof("source") for row in rows} == {"experience", "row_json"}


async def test_stages_are_named_with_what_they_hold(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    [stage] = await looking.stages()
    counts = {one.state: one.count for one in stage.counts}
    assert (stage.state, stage.recorded_step) == ("open", 1)
    assert counts == {BATCHED: 6, pb.EXPERIENCE_STATE_DERIVED: 6}


async def test_samples_of_evaluations_are_apart(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, num_eval=2))
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments
    evals = [one for one in work if one.kind == 2]
    await buffer.settle(*(buffer.complete(one, 0, Made()) for one in evals))
    assert await looking.list() == []
    records = await looking.list(pb.ExperienceFilter(kind=ASSIGNMENT_KIND_EVAL))
    assert [one.state for one in records] == [pb.EXPERIENCE_STATE_EVAL] * len(evals)
    assert evals


async def test_the_views_tell_the_same_in_sql(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    await buffer.report(1, loss=0.25)
    mine = f"WHERE experiment_id = '{buffer.key.experiment_id}'"
    with psycopg.connect(shared_dsn) as connection:

        def ask(query: str) -> list[tuple[object, ...]]:
            return connection.execute(f"{query} {mine} ORDER BY 1, 2".encode()).fetchall()

        assert ask("SELECT task_index, run, state, reward FROM buffer.view_sample")[:2] == [
            (0, 0, "batched", 0.0),
            (0, 1, "batched", 1.0),
        ]
        trained = ask("SELECT train_step, place, task_index, reward FROM buffer.view_trained")
        assert trained[5] == (1, 5, 2, 1.0)
        assert ask("SELECT train_step, num_rows, train_metrics->>'loss' FROM buffer.view_step") == [
            (1, 6, "0.25")
        ]
        tasks = "SELECT task_index, num_samples, mean_reward, num_trained FROM buffer.view_task"
        assert ask(tasks) == [(number, 2, 0.5, 2) for number in range(3)]


NESTED_CURSOR = base64.urlsafe_b64encode(b"[" * 10_000).decode()
"""Deeper than Python follows, and within the bound of a text in a request."""


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"filter": pb.ExperienceFilter(reward_min=float("nan"))}, "filter.reward_min is nan"),
        ({"filter": pb.ExperienceFilter(text="\x00")}, "filter.text holds a null character"),
        ({"filter": pb.ExperienceFilter(version_min=2**63 - 1)}, "filter.version_min"),
        ({"filter": pb.ExperienceFilter(experience_ids=["x"])}, "filter.experience_ids 'x'"),
        ({"cursor": "AAAA"}, "cursor: give back one that came with a page"),
        ({"cursor": NESTED_CURSOR}, "cursor: give back one that came with a page"),
        ({"limit": -1}, "limit is -1"),
    ],
)
async def test_a_malformed_question_is_refused_by_the_path_of_its_field(
    buffer: Buffer, looking: Looking, tmp_path: Path, request_: dict[str, object], said: str
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    request = pb.ListExperiencesRequest(key=buffer.pb_key, **request_)  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError, match=said) as error:
        await looking.stub.ListExperiences(request, timeout=CALL_SECONDS).read()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_not_there_is_said_so(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="is not open"):
        await looking.list()
    await first_step(buffer, tmp_path)
    with pytest.raises(grpc.aio.AioRpcError, match=r"step 2 .* has no batch; the newest .* is 1"):
        await looking.step(2)
    with pytest.raises(grpc.aio.AioRpcError, match="holds no sample 00000000"):
        await looking.get("00000000")


async def test_the_steps_of_wanted_weights_are_found_by_their_index(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    await first_step(buffer, tmp_path)
    async with await psycopg.AsyncConnection.connect(shared_dsn, autocommit=True) as connection:
        await connection.execute(
            "UPDATE buffer.experience SET version_min = position, version_max = position + 1, "
            "explore_step = 10 + position WHERE experiment_id = %s",
            [buffer.key.experiment_id],
        )
        await connection.execute("SET enable_seqscan TO off")
        plan = await connection.execute(
            "EXPLAIN SELECT 1 FROM buffer.experience WHERE version_max >= 1 AND version_min <= 1"
        )
        assert "experience_version_ix" in str(await plan.fetchall())

    async def steps(least: int | None, most: int | None) -> StepRange | None:
        wanted = SampleFilter(version_min=least, version_max=most)
        async with impatient_database(shared_dsn) as database, database.transaction() as work:
            return await steps_of_versions(work, buffer.key, wanted)

    assert await steps(3, None) == (12, 12)
    assert await steps(1, 1) == (10, 11)
    assert await steps(None, 1) == (10, 11)
    assert await steps(4, None) is None
