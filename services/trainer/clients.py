"""A rank's clients of the buffer and the synchronizer; calls are retried while a peer is away."""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc

from services.trainer.batch_rows import RowReader
from services.trainer.types import (
    RankTurnState,
    StepOutcome,
    TrainBatch,
    TrainedTokens,
    TrainRow,
    WeightsOnDisk,
    WrittenCheckpoint,
)
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, synchronizer_pb2, synchronizer_pb2_grpc
from trinity.data.codec import stage_key_to_proto
from trinity.data.codec_checks import turn_digests
from trinity.runtime.device_lock import ReportCounter
from trinity.runtime.members import WaitKind
from trinity.runtime.origin import batch_digest, data_row_digest
from trinity.runtime.presence import wait_kind_from_proto
from trinity.runtime.retry import RpcRetry
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.types import StageKey

logger = logging.getLogger(__name__)

KIND_FULL = synchronizer_pb2.Version.KIND_FULL
KIND_DELTA = synchronizer_pb2.Version.KIND_DELTA
POLL_SECONDS = 20.0
EVALUATION_POLL_SECONDS = 5.0
REPORT_STREAM_SECONDS = 60.0
"""Time after which the stream of reports is reopened, which bounds how long one is missed."""
OPEN_SECONDS = 120.0
"""Longer than the buffer takes to load users' files; a call cut off would load them again."""
TRANSFER_SECONDS = 60.0
"""Time limit for sending the rows of a batch once they are composed."""


class NoBatchReason(Enum):
    """The reasons that there is no batch."""

    WAITING = "waiting"
    DRAINED = "drained"
    CANCELLED = "cancelled"
    VERSION_WANTED = "version wanted"
    """Explorers wait for the current weights to be published."""
    WEIGHTS_DAMAGED = "weights damaged"
    """Published weights are to be written again first."""
    STOPPING = "stopping"
    """The step in hand is to be saved, and no further one trained."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch, or the reason for its absence."""

    batch: TrainBatch | None
    state: NoBatchReason | None = None
    reason: str = ""
    num_available: int = 0
    """Rollouts already available for the batch that is waited for."""
    num_wanted: int = 0
    """Rollouts that the batch needs; 0 where that is not known."""
    waits_for: WaitKind = WaitKind.STATE


_TURN_STATES = {
    RankTurnState.WANTED: synchronizer_pb2.RecordTurnRequest.STATE_WANTED,
    RankTurnState.HELD: synchronizer_pb2.RecordTurnRequest.STATE_HELD,
    RankTurnState.RELEASED: synchronizer_pb2.RecordTurnRequest.STATE_RELEASED,
}
NO_BATCH_REASONS = {
    buffer_pb2.BatchHead.STATE_WAITING: NoBatchReason.WAITING,
    buffer_pb2.BatchHead.STATE_DRAINED: NoBatchReason.DRAINED,
    buffer_pb2.BatchHead.STATE_CANCELLED: NoBatchReason.CANCELLED,
    buffer_pb2.BatchHead.STATE_VERSION_WANTED: NoBatchReason.VERSION_WANTED,
}


@dataclass(frozen=True, slots=True)
class KeptVersions:
    """The versions whose files must stay."""

    pinned: frozenset[int] = frozenset()
    """All of them: those that open work needs, and the best."""
    best: tuple[int, ...] = ()
    """The best evaluated ones, the best first."""


@dataclass(frozen=True, slots=True)
class EvaluationsEnd:
    """The end of a stage's last evaluations."""

    best: tuple[int, ...]
    is_cancelled: bool
    reason: str


class TrainerBufferClient:
    """Calls the buffer for one stage."""

    def __init__(self, *, channel: grpc.Channel, key: StageKey, retry: RpcRetry) -> None:
        self._stub = buffer_pb2_grpc.BufferServiceStub(channel)
        self._key = stage_key_to_proto(key)
        self._retry = retry
        self._polling: grpc.Call | None = None
        self._interrupted = threading.Event()

    def open_stage(self, plan_json: str, seed: int) -> int | None:
        """Returns the train steps that plan and data allow, once known; None when unbounded."""
        request = buffer_pb2.OpenStageRequest(key=self._key, plan_json=plan_json, seed=seed)
        answer = self._retry.call_until_ready(
            lambda: self._stub.OpenStage(request, timeout=OPEN_SECONDS), _not_open_reason
        )
        return answer.total_train_steps or None

    def begin_incarnation(self, trainer_id: str) -> buffer_pb2.BeginIncarnationResponse:
        """Begins a new life; returns the raw message, which the first rank sends to the others."""
        request = buffer_pb2.BeginIncarnationRequest(key=self._key, trainer_id=trainer_id)
        answer: buffer_pb2.BeginIncarnationResponse = self._retry.call(
            lambda: self._stub.BeginIncarnation(request, timeout=CALL_SECONDS)
        )
        return answer

    def read_media(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the contents of images that the tenant uses, by hash."""
        request = buffer_pb2.ReadMediaRequest(tenant=self._key.tenant, sha256=hashes)

        def read() -> dict[bytes, bytes]:
            contents = {sha256: bytearray() for sha256 in hashes}
            for response in self._stub.ReadMedia(request, timeout=TRANSFER_SECONDS):
                contents[response.sha256] += response.chunk
            return {sha256: bytes(content) for sha256, content in contents.items()}

        return self._retry.call(read)

    def get_batch(
        self,
        step: int,
        incarnation: int,
        reader: RowReader,
        wait_seconds: float = POLL_SECONDS,
        *,
        takes_incomplete: bool = False,
    ) -> BatchResult:
        """Long-polls for the batch of a step; returns the reason if it is not available."""
        request = buffer_pb2.GetBatchRequest(
            key=self._key,
            incarnation=incarnation,
            step=step,
            wait_seconds=min(wait_seconds, POLL_SECONDS),
            takes_incomplete=takes_incomplete,
        )
        head, rows, received_sha256 = self._retry.call(lambda: self._receive(request, reader))
        if head.state in NO_BATCH_REASONS:
            return _no_batch(head)
        if head.rows_sha256 not in (b"", received_sha256):
            logger.error("the rows are not those that were recorded", extra={"step": step})
        batch = TrainBatch(
            step=step,
            rows=rows,
            metrics=dict(head.metrics),
            replayed=head.replayed,
            rows_sha256=received_sha256 if head.rows_sha256 else b"",
            num_bad_rows=head.num_rows - len({row.position for row in rows}),
        )
        return BatchResult(batch)

    def _receive(
        self, request: buffer_pb2.GetBatchRequest, reader: RowReader
    ) -> tuple[buffer_pb2.BatchHead, list[TrainRow], bytes]:
        """Reads the whole stream, so that a break in its middle repeats the whole call.

        Each message is decoded while the next is on its way.
        """
        head = buffer_pb2.BatchHead()
        rows: list[TrainRow] = []
        digests: list[bytes] = []
        stream = self._stub.GetBatch(request, timeout=POLL_SECONDS + TRANSFER_SECONDS)
        self._polling = stream
        if self._interrupted.is_set():
            stream.cancel()
        try:
            for message in stream:
                if message.WhichOneof("part") == "head":
                    head = message.head
                else:
                    rows += reader.read(message.rows.rows, oldest_version=head.oldest_version)
                    digests += map(_row_digest, message.rows.rows)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED or not self._interrupted.is_set():
                raise
            return buffer_pb2.BatchHead(state=buffer_pb2.BatchHead.STATE_WAITING), [], b""
        finally:
            self._polling = None
            self._interrupted.clear()
        return head, rows, batch_digest(digests)

    def interrupt_poll(self) -> None:
        """Ends the current or next poll for a batch as if it timed out.

        May be called from another thread. Batches never change, so polling again is safe.
        """
        self._interrupted.set()
        if (polling := self._polling) is not None:
            polling.cancel()

    def record_version(self, weights: WeightsOnDisk) -> KeptVersions:
        """Records published weights; returns the versions whose files must stay."""
        version = buffer_pb2.PublishedVersion(
            version=weights.version,
            incarnation=weights.incarnation,
            weights_sha256=weights.weights_sha256,
            weights_blake3=weights.weights_blake3,
            lineage_sha256=weights.lineage_sha256,
        )
        request = buffer_pb2.RecordVersionRequest(key=self._key, version=version)
        answer = self._retry.call(lambda: self._stub.RecordVersion(request, timeout=CALL_SECONDS))
        return KeptVersions(frozenset(answer.pinned_versions), tuple(answer.best_versions))

    def report_step(self, step: int, incarnation: int, outcome: StepOutcome) -> KeptVersions:
        """Reports a step's results; returns the versions whose files must stay."""
        rows = [
            buffer_pb2.RowFeedback(
                position=position,
                mean_ratio=statistics.mean_ratio,
                advantage=statistics.advantage,
                tokens=_token_values(statistics.tokens),
            )
            for position, statistics in sorted(outcome.rows.items())
        ]
        request = buffer_pb2.ReportStepRequest(
            key=self._key, incarnation=incarnation, step=step, metrics=outcome.metrics, rows=rows
        )
        answer = self._retry.call(lambda: self._stub.ReportStep(request, timeout=CALL_SECONDS))
        return KeptVersions(frozenset(answer.pinned_versions), tuple(answer.best_versions))

    def commit_checkpoint(self, checkpoint: WrittenCheckpoint) -> Iterable[Path]:
        """Commits a checkpoint; returns the checkpoints that may be deleted."""
        message = buffer_pb2.Checkpoint(
            step=checkpoint.step,
            incarnation=checkpoint.incarnation,
            path=str(checkpoint.path),
            manifest_sha256=checkpoint.manifest_sha256,
            lineage_sha256=checkpoint.lineage_sha256,
        )
        request = buffer_pb2.CommitCheckpointRequest(key=self._key, checkpoint=message)
        answer = self._retry.call(
            lambda: self._stub.CommitCheckpoint(request, timeout=CALL_SECONDS)
        )
        return [Path(removable.path) for removable in answer.removable]

    def finish_training(self, step: int, incarnation: int) -> None:
        """Tells the buffer that no further batch will be requested."""
        request = buffer_pb2.FinishTrainingRequest(
            key=self._key, incarnation=incarnation, step=step
        )
        self._retry.call(lambda: self._stub.FinishTraining(request, timeout=CALL_SECONDS))

    def await_evaluations(
        self, step: int, incarnation: int, is_left: Callable[[], bool]
    ) -> EvaluationsEnd | None:
        """Waits until no evaluation of a stage is open whose training has finished.

        Returns None where `is_left` came first.
        """
        request = buffer_pb2.FinishTrainingRequest(
            key=self._key, incarnation=incarnation, step=step
        )

        def ask() -> buffer_pb2.FinishTrainingResponse:
            answer: buffer_pb2.FinishTrainingResponse = self._stub.FinishTraining(
                request, timeout=EVALUATION_POLL_SECONDS + CALL_SECONDS
            )
            request.wait_seconds = EVALUATION_POLL_SECONDS  # from now on the wait is shown
            return answer

        answer = self._retry.call_until_ready(
            ask,
            lambda told: None if is_left() else _evaluating_reason(told),
            seconds=math.inf,
        )
        if _evaluating_reason(answer) is not None:
            return None
        is_cancelled = answer.state == buffer_pb2.FinishTrainingResponse.STATE_CANCELLED
        return EvaluationsEnd(tuple(answer.best_versions), is_cancelled, answer.reason)


def _row_digest(row: buffer_pb2.BatchRow) -> bytes:
    if row.HasField("experience"):
        return turn_digests(row.experience)[-1]
    return data_row_digest(row.row_json)


def _no_batch(head: buffer_pb2.BatchHead) -> BatchResult:
    return BatchResult(
        None,
        NO_BATCH_REASONS[head.state],
        head.reason,
        num_available=head.num_rows,
        num_wanted=head.num_wanted,
        waits_for=wait_kind_from_proto(head.waits_for),
    )


def _not_open_reason(answer: buffer_pb2.OpenStageResponse) -> str | None:
    if answer.state != buffer_pb2.OpenStageResponse.STATE_READING:
        return None
    return answer.reason or "its tasksets are still being read"


def _evaluating_reason(answer: buffer_pb2.FinishTrainingResponse) -> str | None:
    if answer.state != buffer_pb2.FinishTrainingResponse.STATE_EVALUATING:
        return None
    return "explorers evaluate the last weights, and the best are kept"


class TrainerSynchronizerClient:
    """Calls the synchronizer for one stage."""

    def __init__(self, *, channel: grpc.Channel, key: StageKey, retry: RpcRetry) -> None:
        self._stub = synchronizer_pb2_grpc.SynchronizerServiceStub(channel)
        self._key = key
        self._retry = retry
        self._turn_reports = ReportCounter()

    def versions(self) -> list[WeightsOnDisk]:
        """Returns the versions of the stage that can be loaded, as announced so far."""
        return [_from_proto(version) for version in self._announced()]

    def reported_versions(self) -> list[WeightsOnDisk]:
        """Returns those of them that explorers have reported as damaged and that are needed."""
        return damaged_versions(self._announced())

    def _announced(self) -> list[synchronizer_pb2.Version]:
        request = synchronizer_pb2.WatchExperimentRequest(experiment_id=self._key.experiment_id)
        answer = self._retry.call(lambda: self._first_answer(request))
        return [version for version in answer.versions if version.stage == self._key.stage]

    def _first_answer(
        self, request: synchronizer_pb2.WatchExperimentRequest
    ) -> synchronizer_pb2.WatchExperimentResponse:
        stream = self._stub.WatchExperiment(request, timeout=CALL_SECONDS)
        try:
            answer: synchronizer_pb2.WatchExperimentResponse = next(stream)
            return answer
        finally:
            stream.cancel()

    def follow_reports(self) -> Iterator[list[WeightsOnDisk]]:
        """Yields the versions of the stage that are reported as damaged, at each change.

        Ends after a while, to be opened again. Raises: grpc.RpcError.
        """
        request = synchronizer_pb2.WatchExperimentRequest(experiment_id=self._key.experiment_id)
        stream = self._stub.WatchExperiment(request, timeout=REPORT_STREAM_SECONDS)
        try:
            for answer in stream:
                yield damaged_versions(v for v in answer.versions if v.stage == self._key.stage)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        finally:
            stream.cancel()

    def publish(self, weights: WeightsOnDisk) -> set[int]:
        """Announces weights; returns the versions that live members use."""
        request = synchronizer_pb2.PublishVersionRequest(
            experiment_id=self._key.experiment_id, version=self._to_proto(weights)
        )
        answer = self._retry.call(lambda: self._stub.PublishVersion(request, timeout=CALL_SECONDS))
        return set(answer.pinned_versions)

    def retire(self, weights: Iterable[WeightsOnDisk], damage: str = "") -> None:
        """Reports that files are deleted; with `damage`, that the versions are lost."""
        request = synchronizer_pb2.RetireVersionsRequest(
            experiment_id=self._key.experiment_id,
            versions=[self._to_proto(gone) for gone in weights],
            damage=damage,
        )
        self._retry.call(lambda: self._stub.RetireVersions(request, timeout=CALL_SECONDS))

    def record_turn(self, state: RankTurnState, process: str, reason: str) -> None:
        """Reports where the trainer stands with the device that it shares."""
        place = self._turn_reports.next_place()
        request = synchronizer_pb2.RecordTurnRequest(
            experiment_id=self._key.experiment_id,
            role=synchronizer_pb2.ROLE_TRAINER,
            state=_TURN_STATES[state],
            process=process,
            reason=reason,
            sequence=place.sequence,
            clock=place.clock,
        )
        self._retry.call(lambda: self._stub.RecordTurn(request, timeout=CALL_SECONDS))

    def finish_role(self, final: WeightsOnDisk) -> None:
        """Reports that the trainer's part of the stage is done."""
        request = synchronizer_pb2.FinishRoleRequest(
            experiment_id=self._key.experiment_id,
            stage=self._key.stage,
            role=synchronizer_pb2.ROLE_TRAINER,
            final_version=self._to_proto(final),
        )
        self._retry.call(lambda: self._stub.FinishRole(request, timeout=CALL_SECONDS))

    def _to_proto(self, weights: WeightsOnDisk) -> synchronizer_pb2.Version:
        return synchronizer_pb2.Version(
            stage=self._key.stage,
            version=weights.version,
            incarnation=weights.incarnation,
            kind=KIND_FULL if weights.is_whole else KIND_DELTA,
            base_version=weights.base_version or 0,
            path=str(weights.path),
            manifest_sha256=weights.manifest_sha256,
            weights_sha256=weights.weights_sha256,
            weights_blake3=weights.weights_blake3,
            parent_version=weights.parent,
            offer=_offer(weights),
            copy=weights.copy,
        )


def damaged_versions(announced: Iterable[synchronizer_pb2.Version]) -> list[WeightsOnDisk]:
    """Returns the versions of a stage that are reported as damaged.

    A version that a later incarnation has made again is left out: its weights suit every run.
    """
    versions = list(announced)
    newest: dict[int, int] = {}
    for version in versions:
        newest[version.version] = max(version.incarnation, newest.get(version.version, 0))
    return [
        _from_proto(version)
        for version in versions
        if version.damage and version.incarnation == newest[version.version]
    ]


def _offer(weights: WeightsOnDisk) -> synchronizer_pb2.TransferOffer | None:
    if weights.offer is None:
        return None
    return synchronizer_pb2.TransferOffer(address=weights.offer.address, group=weights.offer.group)


def _from_proto(version: synchronizer_pb2.Version) -> WeightsOnDisk:
    return WeightsOnDisk(
        version=version.version,
        incarnation=version.incarnation,
        path=Path(version.path),
        manifest_sha256=version.manifest_sha256,
        weights_sha256=version.weights_sha256,
        weights_blake3=version.weights_blake3,
        parent=version.parent_version,
        copy=version.copy,
        base_version=version.base_version if version.kind == KIND_DELTA else None,
    )


def _token_values(values: TrainedTokens | None) -> buffer_pb2.TokenValues | None:
    if values is None:
        return None
    return buffer_pb2.TokenValues(
        logprobs=values.logprobs_T.astype("<f4").tobytes(),
        advantages=values.advantages_T.astype("<f4").tobytes(),
    )
