"""Every list of an answer pages or is cut, with a mark, below the limit of a message; fairly."""

from collections.abc import Mapping

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.buffer.domain.batches import (
    METRICS_BYTES,
    MeasuredRow,
    batch_metrics,
    pipeline_metrics,
)
from services.buffer.domain.evaluation import (
    MAX_SUMMARIES_BYTES,
    RunScore,
    metric_names,
    summarise,
)
from services.buffer.domain.tasks import MAX_SAMPLE_BYTES, SampleText, row_error
from services.buffer.servicer import query_calls, stage_calls
from services.buffer.servicer.convert import LEFT_OUT_BYTES, pipeline_to_proto
from services.buffer.store.tasksets import PipelineCounts
from tests.unit.rpc.descriptors import answers, fields_of, sized_names
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1 import taskset_pb2 as pb
from trinity.runtime.rpc.answers import fair_within, first_within
from trinity.runtime.rpc.bounds import LIST_BYTES, name_of
from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES

STREAMED = "as many messages as its size demands"
FEW = "few and small"
CUT: Mapping[str, str] = {
    "BeginIncarnationResponse.checkpoints": "num_checkpoints_left_out",
    "EvaluationDone.metrics": "num_metrics_left_out",
    "GetBufferStatusResponse.stages": "num_stages_left_out",
    "GetStatusResponse.experiments": "num_experiments_left_out",
    "GetStatusResponse.members": "num_members_left_out",
    "GetTasksetResponse.rows": "taskset",  # its num_rows; a later first_row continues
    "GetTasksetResponse.source_rows": "taskset",
    "ListStagesResponse.stages": "num_stages_left_out",
    "ListTasksetsResponse.tasksets": "next_page_token",
    "Member.pinned_versions": "is_shortened",
    "Member.waits": "is_shortened",
    "StageStatus.task_pipelines": "num_task_pipelines_left_out",
    "StepHead.trained": "num_trained_left_out",
    "StoredStage.counts": "num_counts_left_out",
    "SubmitTasksetResponse.refused": "num_refused",
    "TaskPipelineCounts.left_out": "num_reasons_left_out",
    "WatchExperimentResponse.lost_versions": "num_versions_left_out",
    "WatchExperimentResponse.versions": "num_versions_left_out",
    "WatchExperimentsResponse.experiments": "num_experiments_left_out",
}
"""Lists that are cut, with the field beside them that says so."""
BOUNDED: Mapping[str, str] = {
    "Assignment.runs": "10,000 runs of a task",
    "BatchComposed.metrics": "METRICS_BYTES, and num_metrics_left_out among them",
    "BatchHead.metrics": "METRICS_BYTES, and num_metrics_left_out among them",
    "BatchRows.rows": STREAMED,
    "CommitCheckpointResponse.removable": "MAX_REMOVABLE; further ones with the next commit",
    "DeviceTurn.wishes": "one a role",
    "Experiment.stages": "MAX_STAGES",
    "ExperienceRecord.metrics": "the bound of a result",
    "ExperienceRecord.turn_sha256": "the bound of a result",
    "ExperienceRecord.uses": "one for each train step",
    "GetExperienceResponse.run_metrics": "the bound of a result",
    "GetPopulationResponse.comparisons": FEW,
    "FinishTrainingResponse.best_versions": "at most trainer.keep_best",
    "GetSessionResponse.turns": STREAMED,
    "GetTurnsResponse.turns": STREAMED,
    "GetStatusResponse.closed_waits": "MAX_CLOSED_WAITS, and an eighth of ANSWER_BYTES",
    "GetPopulationResponse.left_out": FEW,
    "GiveFeedbackResponse.refused": "those of the request",
    "LeaseAssignmentsResponse.assignments": "as many as fit are leased",
    "ListExperiencesResponse.experiences": STREAMED,
    "TaskScores.versions": "the newest MAX_DRAWS drawings of tasks",
    "TaskScoresPage.tasks": STREAMED,
    "MetricSummary.of_runs": FEW,
    "MetricSummary.of_tasks": FEW,
    "PublishVersionResponse.pinned_versions": "numbers of versions that there are",
    "RecordVersionResponse.best_versions": "at most trainer.keep_best",
    "RecordVersionResponse.pinned_versions": "numbers of versions that there are",
    "RenewLeasesResponse.lost_assignment_ids": "those of the request",
    "ReportStepResponse.best_versions": "at most trainer.keep_best",
    "ReportStepResponse.pinned_versions": "numbers of versions that there are",
    "Samples.samples": FEW,
    "GetExperienceResponse.changes": "the newest MAX_CHANGES, and CHANGES_BYTES",
    "SettingsChanged.changes": "MAX_LISTED_CHANGES, and num_left_out",
    "Stage.finished_roles": FEW,
    "Stage.roles": FEW,
    "StageStatus.changes": "the newest MAX_LISTED_CHANGES",
    "StepHead.changes": "the newest MAX_LISTED_CHANGES",
    "StepHead.batch_metrics": "METRICS_BYTES, and num_metrics_left_out among them",
    "StepRows.rows": STREAMED,
    "StepTrained.metrics": "the bound of a request",
    "TaskPipelineCounts.ordered_by": "names in a plan of 1 MiB",
    "WatchCommitsResponse.reports": STREAMED,
    "WatchProgressResponse.events": STREAMED,
    "SessionTurn.media_sha256": "the bound of a result",
}
"""Lists that cannot grow beyond what is named."""
SAMPLE = ("Blob", "Eid", "Experience", "Pair", "SamplingParams", "Sequence", "Tensor")
"""Messages that came as a result and are given as they came, within the bounds of results."""


def lists_of(kinds: list[Descriptor]) -> set[str]:
    lists = {name_of(field) for field in fields_of(kinds) if field.is_repeated}
    return {name for name in lists & sized_names(kinds) if name.partition(".")[0] not in SAMPLE}


def test_every_list_of_an_answer_is_cut_with_a_mark_or_bounded() -> None:
    assert lists_of(list(answers())) == set(CUT) | set(BOUNDED)


def test_the_mark_of_a_cut_list_stands_beside_it() -> None:
    by_name = {name_of(field): field for field in fields_of(answers())}
    for name, mark in CUT.items():
        kind = by_name[name].containing_type
        assert kind is not None and mark in kind.fields_by_name, name


def test_a_list_of_tomorrow_is_found() -> None:
    """The control: an answer with one list more."""
    file = descriptor_pb2.FileDescriptorProto()
    query_pb2.DESCRIPTOR.CopyToProto(file)
    known = next(message for message in file.message_type if message.name == "StateCount")
    known.field.add(name="examples", number=90, type=FieldDescriptor.TYPE_STRING, label=3)
    pool = descriptor_pool.DescriptorPool()
    for needed in _dependencies(query_pb2.DESCRIPTOR):
        pool.Add(needed)
    pool.Add(file)
    kind = pool.FindMessageTypeByName("trinity.api.v1.StateCount")
    assert lists_of([kind]) - set(CUT) - set(BOUNDED) == {"StateCount.examples"}


def _dependencies(file: object) -> list[descriptor_pb2.FileDescriptorProto]:
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for needed in file.dependencies:  # type: ignore[attr-defined]
        for proto in _dependencies(needed):
            found.setdefault(proto.name, proto)
        copy = descriptor_pb2.FileDescriptorProto()
        needed.CopyToProto(copy)
        found.setdefault(copy.name, copy)
    return list(found.values())


def test_texts_of_answers_are_those_of_requests_results_or_services() -> None:
    """A text that is new in an answer needs a look: is it bounded where it is made?"""
    texts = sized_names(answers()) - lists_of(list(answers()))
    parts = [name.split(".") for name in texts]
    assert {field for kind, field in parts if kind not in SAMPLE} <= KNOWN_TEXTS


KNOWN_TEXTS = {
    *("logprobs", "advantages"),  # of one row, in GetExperience alone; `ReportStep` bounds both
    *(
        "id",
        "member_id",
        "experiment_id",
        "taskset_id",
        "assignment_id",
        "parent_id",
        "experience_id",
    ),
    *("explorer_id", "trainer_id", "lease_token", "traceparent", "trace_id"),
    *("payload", "prompt_sha256", "session_key"),  # of turns, within the bounds of results
    *("sha256", "chunk"),  # of an image
    *("session_id", "call_id", "secret"),  # of clients: UUIDs, and one that the buffer makes
    *("tenant", "stage", "label", "name", "taskset", "owner", "waits_for", "rows_from_run"),
    *("manifest_sha256", "weights_sha256", "weights_blake3", "path", "address"),
    *("content_sha256", "row_sha256", "rows_sha256", "before_sha256", "lineage_sha256"),
    *("group", "source", "state", "process"),
    *("reason", "activity", "damage", "recent_loss", "dead_letter_reason", "content_removed"),
    *("text", "prompt", "response", "cursor", "next_page_token"),
    *("task_json", "row_json", "plan_json", "order_json"),
    "start_json",  # of a host's part of an engine or a worker group, as the plan has it
    *("what", "by", "role"),  # of four words; the subject of a token; who speaks in a chat
    *("key", "before", "now"),  # a setting, of which `format_value` writes 80 characters
}


def taskset(name: str, size: int = 90) -> pb.Taskset:
    return pb.Taskset(name=name, source="s" * size)


def test_the_first_that_fit_are_taken_and_one_at_least() -> None:
    items = [taskset(str(number)) for number in range(10)]
    assert first_within(items, 10**6) == items
    assert first_within(items, 350) == items[:3]
    assert first_within(items, 1) == items[:1]
    assert first_within([], 1) == []


def test_each_owner_keeps_as_many_as_others_in_the_order_of_the_list() -> None:
    items = [taskset("a") for _ in range(100)] + [taskset("b"), taskset("c"), taskset("b")]
    kept = [item.name for item in fair_within(items, lambda item: item.name, 550)]
    assert kept == ["a", "a", "b", "c", "b"]


def key_of(tenant: str, number: int = 0) -> buffer_pb2.StageKey:
    return buffer_pb2.StageKey(tenant=tenant, experiment_id=str(number), stage="s" * 400)


def test_stages_of_one_tenant_keep_no_other_tenant_out_and_those_left_out_are_counted() -> None:
    keys = [key_of("a", number) for number in range(20_000)] + [key_of("b")]
    counts = [query_pb2.StateCount(reason="r" * 300)]
    listed = query_calls.stages_response(
        [query_pb2.StoredStage(key=key, counts=counts) for key in keys]
    )
    shown = stage_calls.status_response(
        [buffer_pb2.StageStatus(key=key, recent_loss="r" * 300) for key in keys]
    )
    for told in (listed, shown):
        assert told.ByteSize() <= MAX_REQUEST_BYTES
        assert told.stages[-1].key.tenant == "b" and told.num_stages_left_out > 0
        assert len(told.stages) + told.num_stages_left_out == len(keys)
    whole = stage_calls.status_response([buffer_pb2.StageStatus(key=key) for key in keys[:100]])
    assert len(whole.stages) == 100 and whole.num_stages_left_out == 0, "the control"


def test_reasons_of_a_task_pipeline_are_cut_and_the_commonest_stay() -> None:
    left_out = {f"{number:05} " + "r" * 10_000: number for number in range(1, 100)}
    told = pipeline_to_proto(PipelineCounts(num_read=1, left_out=left_out, ordered_by={}))
    assert told.ByteSize() < LEFT_OUT_BYTES + 100
    assert [reason.num_rows for reason in told.left_out][:3] == [99, 98, 97]
    assert len(told.left_out) + told.num_reasons_left_out == 99
    few = pipeline_to_proto(PipelineCounts(num_read=1, left_out={"r": 1}, ordered_by={}))
    assert len(few.left_out) == 1 and few.num_reasons_left_out == 0


def test_an_event_shows_the_beginning_of_a_long_sample_and_says_so() -> None:
    shown = SampleText.clipped("p" * 10**6, "r", None)
    left_out = 10**6 - MAX_SAMPLE_BYTES
    assert shown.prompt.endswith(f"p ... ({left_out:,} more characters)")
    assert len(shown.prompt) < MAX_SAMPLE_BYTES + 50 and shown.response == "r"


def test_a_row_is_measured_in_bytes() -> None:
    row = '{"prompt": "' + "\N{SNOWMAN}" * (1024 * 1024 + 1) + '"}'
    assert "bytes, a row may have 3,145,728" in row_error(row)
    assert row_error('{"prompt": "' + "x" * (1024 * 1024 + 1) + '"}') == ""


def measured(metrics: dict[str, float]) -> MeasuredRow:
    return MeasuredRow(
        explore_step=1,
        position=0,
        run=0,
        reward=1.0,
        response_length=1,
        version_min=0,
        metrics=metrics,
        run_metrics={},
    )


OTHER_NAMES = [{f"{run:04}/{number:0500}": 1.0 for number in range(50)} for run in range(100)]
"""A workflow that gives each run other metrics."""


@pytest.mark.parametrize("prefix", ["rollout", "experience_pipeline"])
def test_metrics_of_a_batch_with_ever_new_names_are_cut_and_counted(prefix: str) -> None:
    if prefix == "rollout":
        found = batch_metrics([measured(metrics) for metrics in OTHER_NAMES], 1)
    else:
        found = pipeline_metrics(OTHER_NAMES)
    own = {name for name in found if name.startswith(f"{prefix}/0")}
    num_left_out = found[f"{prefix}/num_metrics_left_out"]
    assert len(own) == 3 * (5_000 - num_left_out)
    assert sum(len(name) + 8 for name in found) < METRICS_BYTES + 10_000 < 2 * LIST_BYTES


def test_usual_metrics_of_a_batch_are_whole() -> None:
    """The control: nothing is taken from what fits."""
    found = batch_metrics([measured({"length": 1.0, "turns": 2.0})], 1)
    assert found["rollout/length/mean"] == 1.0 and found["rollout/turns/max"] == 2.0
    assert "rollout/num_metrics_left_out" not in found


def test_metrics_of_an_evaluation_with_ever_new_names_are_cut_and_counted() -> None:
    scores = [
        RunScore(assignment_id=str(run), values=metrics) for run, metrics in enumerate(OTHER_NAMES)
    ]
    told = summarise(scores, 1)
    assert 0 < len(told) < len(metric_names(scores)) == 5_000
    assert sum(len(summary.name) for summary in told) < MAX_SUMMARIES_BYTES
    assert [summary.name for summary in told] == sorted(metric_names(scores))[: len(told)]
