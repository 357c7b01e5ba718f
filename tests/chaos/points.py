"""The named moments at which a process may be made to die: between two things that belong together.

A point is where a function of a service begins or has ended; the services know nothing of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trinity.api.v1 import buffer_pb2 as pb

Process = Literal["explorer", "buffer", "rank", "synchronizer"]


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Reached before a call of `target`, or after it if what it gave `counts`."""

    process: Process
    moment: str
    target: str
    when: Literal["before", "after"] = "after"
    counts: Callable[[Any], bool] = _always
    in_campaign: bool = True
    """Whether the experiments of a campaign come to it."""
    variety: str = ""
    """The only kind of experiment that does, if there is one."""

    @property
    def name(self) -> str:
        """As it is armed."""
        return f"{self.process}.{self.moment}"


def _is_granted(answer: pb.LeaseAssignmentsResponse) -> bool:
    return answer.state == pb.LeaseAssignmentsResponse.STATE_GRANTED


def _has_assignments(answer: Any) -> bool:
    return bool(getattr(answer, "assignments", ()))


def _is_batch(found: tuple[Any, Any]) -> bool:
    return type(found[1]).__name__ == "BatchHead"


def _has_batch(answer: Any) -> bool:
    return answer.batch is not None


def _is_retired(retired: Any) -> bool:
    return bool(retired.num_segments > 0)


def _buffer(moment: str, target: str, **more: Any) -> Point:
    return Point(process="buffer", moment=moment, target=f"services.buffer.{target}", **more)


def _visit(moment: str, target: str) -> Point:
    return _buffer(moment, target, variety="visited")


def _explorer(moment: str, target: str, **more: Any) -> Point:
    return Point(process="explorer", moment=moment, target=f"services.explorer.{target}", **more)


def _rank(moment: str, target: str, **more: Any) -> Point:
    return Point(process="rank", moment=moment, target=f"services.trainer.{target}", **more)


def _synchronizer(moment: str, target: str, **more: Any) -> Point:
    target = f"services.synchronizer.{target}"
    return Point(process="synchronizer", moment=moment, target=target, **more)


CALLS = "servicer.trainer_calls:TrainerRpcs"
RANK_TURNS = "rank.device_turns:SharedDevice"
ENGINE_TURNS = "engine.turns:EngineSharedDevice"
EXPERIMENT = "control.experiment:ExperimentRunner"
IN_FLIGHT = "engine.in_flight:InFlightEngine"
ALL = (
    # A result: stored, committed, acknowledged.
    _buffer("results-fetched", "ingest.ingest:Ingest.store_messages", when="before"),
    _buffer("results-inserted", "ingest.ingest:insert_reports"),
    _buffer("results-committed", "ingest.ingest:Ingest._commit"),
    # A turn of a session: stored, not committed.
    _buffer("turns-stored", "store.turns:insert_bodies", variety="talking"),
    # A lease: in the database, not yet with the explorer.
    _buffer("lease-granted", "servicer.explorer_calls:_response", counts=_is_granted),
    # A draw: what the selector learned from, what it took, neither committed yet.
    _buffer("feedback-heard", "operations.explore_steps:mark_feedback_received"),
    _buffer("tasks-drawn", "operations.leasing:draw_tasks"),
    _buffer("ranking-kept", "operations.explore_steps:insert_ranking", variety="tasks_sql"),
    # A group: claimed, shaped, committed.
    _buffer("groups-claimed", "pipeline.pipeline:ClaimProcessor._process_or_bisect", when="before"),
    _buffer("groups-shaped", "operations.grouping:notify"),
    # A batch: recorded, committed, answered.
    _buffer("batch-recorded", "operations.batch_sources:insert_items"),
    _buffer("batch-composed", f"{CALLS}._look_for_batch", counts=_is_batch),
    # A taskset that a client brings: rows stored, all of it committed and not answered, taken away.
    _visit("upload-stored", "servicer.taskset_calls:store_rows"),
    _visit("upload-ended", "servicer.taskset_calls:end_upload"),
    _visit("taskset-submitted", "servicer.taskset_calls:TasksetRpcs.SubmitTaskset"),
    _visit("queue-closed", "servicer.taskset_calls:TasksetServicer.CloseQueue"),
    _visit("taskset-deleted", "servicer.taskset_calls:delete_taskset"),
    # One whose client never came back, deleted and not committed.
    _visit("abandoned-deleted", "maintenance:delete_taskset"),
    # Rewards that come later, samples that are taken out: in the transaction, and not answered yet.
    _visit("reward-stored", "operations.feedback:store_reward"),
    _visit("feedback-given", "servicer.curation_calls:CurationRpcs.GiveFeedback"),
    # Rewards that never come: samples left out, their groups let go, all of it told, uncommitted.
    _visit("overdue-left-out", "operations.feedback:log_notice"),
    _visit("samples-excluded", "operations.curation:exclude"),
    _visit("exclusion-committed", "servicer.curation_calls:CurationRpcs.ExcludeExperiences"),
    _visit("samples-included", "operations.curation:restore_excluded"),
    _visit("inclusion-committed", "servicer.curation_calls:CurationRpcs.IncludeExperiences"),
    _visit("contents-deleted", "operations.curation:delete_content"),
    # Old contents: given up and not committed, committed and there, detached and not dropped, gone.
    _buffer("contents-given-up", "maintenance:retire_contents", counts=_is_retired),
    _buffer("partition-to-go", "store.segments:_detach", when="before"),
    _buffer("partition-detached", "store.segments:_detach"),
    _buffer("partitions-removed", "maintenance:remove_retired", counts=bool),
    # Experiences beside the run: lines that are written, rows that are not committed.
    _buffer("sink-written", "sink.targets:JsonLinesTarget.write", variety="sink_file"),
    _buffer("sink-moved", "sink.targets:SqlTarget._move", variety="sink_sql"),
    # Images: of a file or a client, stored and not used; used by rows or samples, not committed;
    # used by rows for good, of which nobody has heard; about to go.
    _buffer("image-stored", "tasksets.library:store_media", variety="seeing"),
    _buffer("image-taken", "servicer.common:BufferServicerBase.store_image", variety="seeing"),
    _buffer("images-used", "tasksets.library:use_stored_media", variety="seeing"),
    _buffer("samples-use-images", "operations.results:use_media", variety="seeing"),
    _buffer("rows-with-images", "tasksets.library:TasksetLibrary._read", variety="seeing"),
    _buffer("images-to-go", "maintenance:delete_unused_media", when="before", variety="seeing"),
    # A batch that is trained again: copied, not committed.
    _buffer("batch-copied", "operations.batch_sources:insert_items", variety="retrained"),
    # Samples that are trained again by priority, tasks through a pipeline, another run's rows.
    _buffer("replay-chosen", "operations.batching:apply_selection", variety="replayed"),
    _buffer("tasks-piped", "tasksets.task_pipeline:insert_pipeline", variety="piped"),
    _buffer("explored-taken", "operations.batching:explored_rows", variety="explored"),
    # An evaluation: opened with its tasks, summed up; neither committed yet.
    _buffer(
        "evaluation-opened",
        "operations.evaluation:insert_evaluation",
        counts=bool,
        variety="measured",
    ),
    _buffer("evaluation-closed", "operations.results:close_evaluation", variety="measured"),
    # What the trainer says: committed, not yet answered.
    _buffer("incarnation-begun", f"{CALLS}.BeginIncarnation"),
    _buffer("version-recorded", f"{CALLS}.RecordVersion"),
    _buffer("step-recorded", f"{CALLS}.ReportStep"),
    _buffer("checkpoint-recorded", f"{CALLS}.CommitCheckpoint"),
    _buffer("training-finished", f"{CALLS}.FinishTraining"),
    # The explorer: between work and result.
    _explorer("lease-taken", "clients.buffer:ExplorerBufferClient.lease", counts=_has_assignments),
    _explorer("weights-loaded", "engine.weight_transfer:WeightLoader.load_published"),
    _explorer(
        "turn-made",
        "delivery.outbox:Outbox.enqueue_turn",
        when="before",
        variety="talking",
    ),
    _explorer("results-published", "delivery.publisher:NatsBroker.publish"),
    _explorer("report-heard", "delivery.outbox:Outbox.resolve", when="before"),
    _explorer("stage-drained", f"{EXPERIMENT}._report_finished", when="before"),
    _explorer("role-finished", f"{EXPERIMENT}._report_finished"),
    # The trainer: the order of a step, of weights, of a checkpoint, of the end.
    _rank("incarnation-begun", "rank.stage:begin_incarnation"),
    _rank("batch-received", "data.batches:BatchSource.next_batch", counts=_has_batch),
    _rank("step-trained", "rank.loop:TrainingLoop._report", when="before"),
    _rank("step-reported", "rank.loop:TrainingLoop._report"),
    _rank("weights-unsealed", "checkpoints.weights:seal", when="before"),
    _rank("weights-written", "checkpoints.weights:WeightsStore.seal_files"),
    _rank("weights-announced", "clients:TrainerSynchronizerClient.publish"),
    _rank("version-recorded", "clients:TrainerBufferClient.record_version"),
    # Weights from memory to memory: one of the two is gone when they have met, or right after.
    Point(
        process="rank",
        moment="transfer-begun",
        target="trinity.weights.sending:pack",
        when="before",
        variety="transferred",
    ),
    Point(
        process="rank",
        moment="transfer-ended",
        target="trinity.weights.sending:WeightsSender._send",
        variety="transferred",
    ),
    _explorer(
        "transfer-granted",
        "engine.weight_transfer:EngineWeightReceiver._request_slot",
        variety="transferred",
    ),
    # Weights as differences: one is written, not sealed; one is applied, not verified.
    _rank("delta-written", "checkpoints.dealt:write_difference", variety="halved"),
    Point(
        process="explorer",
        moment="delta-applied",
        target="trinity.weights.whole:check_applied",
        when="before",
        variety="halved",
    ),
    # Weights amid requests: paused; loaded, not resumed; resumed, no span taken up; one of two.
    _explorer("engine-paused", f"{IN_FLIGHT}._pause", variety="in_flight"),
    _explorer("swap-loaded", f"{IN_FLIGHT}._resume", when="before", variety="in_flight"),
    _explorer("swap-resumed", f"{IN_FLIGHT}._resume", variety="in_flight"),
    _explorer("engine-swapped", f"{IN_FLIGHT}.load_weights", variety="in_flight"),
    # A device by turns: wanted, taken, left, let go; the engine's side; what is told of it.
    _rank("device-wanted", f"{RANK_TURNS}._wait_and_take", when="before", variety="colocated"),
    _rank("device-taken", f"{RANK_TURNS}._wait_and_take", variety="colocated"),
    _rank("device-kept", f"{RANK_TURNS}._keep", in_campaign=False),
    Point(
        process="rank",
        moment="device-left",
        target="trinity.runtime.device_lock:DeviceLock.release",
        when="before",
        variety="colocated",
    ),
    Point(
        process="rank",
        moment="device-released",
        target="trinity.runtime.device_lock:DeviceLock.release",
        variety="colocated",
    ),
    _explorer("engine-starts", f"{ENGINE_TURNS}._try_here", counts=bool, variety="colocated"),
    _explorer("engine-awake", f"{ENGINE_TURNS}.take", variety="colocated"),
    _explorer("engine-tired", f"{ENGINE_TURNS}.give_back", when="before", variety="colocated"),
    _explorer("engine-asleep", f"{ENGINE_TURNS}.give_back", variety="colocated"),
    _synchronizer("turn-saved", "store.experiments:save_turn", counts=bool, variety="colocated"),
    _synchronizer("turn-recorded", "operations:Operations.record_turn", variety="colocated"),
    _rank("checkpoint-unsealed", "checkpoints.checkpoints:seal", when="before"),
    _rank("checkpoint-written", "checkpoints.checkpoints:CheckpointStore.write"),
    _rank("checkpoint-committed", "clients:TrainerBufferClient.commit_checkpoint"),
    _rank("training-finished", "clients:TrainerBufferClient.finish_training"),
    _rank("role-finished", "clients:TrainerSynchronizerClient.finish_role"),
    # The synchronizer: committed, not yet answered.
    _synchronizer("experiment-created", "operations:Operations.create_experiment"),
    _synchronizer("version-inserted", "store.versions:publish"),
    _synchronizer("version-published", "operations:Operations.publish_version"),
    _synchronizer("role-finished", "operations:Operations.finish_role"),
)
POINTS = {point.name: point for point in ALL}
CAMPAIGN = [point.name for point in ALL if point.in_campaign]
