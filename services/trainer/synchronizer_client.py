"""The first rank's client of the synchronizer; each call is retried while that restarts."""

from collections.abc import Iterable
from pathlib import Path

import grpc

from services.trainer.patience import Patience
from services.trainer.weights_types import PublishedWeights
from trinity.api.v1 import synchronizer_pb2, synchronizer_pb2_grpc
from trinity.rpc.limits import CALL_SECONDS
from trinity.types import StageKey


class SynchronizerClient:
    """Calls the synchronizer for one stage."""

    def __init__(self, *, channel: grpc.Channel, key: StageKey, patience: Patience) -> None:
        self._stub = synchronizer_pb2_grpc.SynchronizerServiceStub(channel)
        self._key = key
        self._patience = patience

    def versions(self) -> list[PublishedWeights]:
        """Returns the versions of the stage that can be loaded, as announced so far."""
        request = synchronizer_pb2.WatchExperimentRequest(experiment_id=self._key.experiment_id)
        answer = self._patience.call(lambda: self._first_answer(request))
        return [_from_proto(v) for v in answer.versions if v.stage == self._key.stage]

    def _first_answer(
        self, request: synchronizer_pb2.WatchExperimentRequest
    ) -> synchronizer_pb2.WatchExperimentResponse:
        stream = self._stub.WatchExperiment(request, timeout=CALL_SECONDS)
        try:
            answer: synchronizer_pb2.WatchExperimentResponse = next(stream)
            return answer
        finally:
            stream.cancel()

    def publish(self, weights: PublishedWeights) -> set[int]:
        """Announces weights; returns the versions that live members use."""
        request = synchronizer_pb2.PublishVersionRequest(
            experiment_id=self._key.experiment_id, version=self._to_proto(weights)
        )
        answer = self._patience.call(
            lambda: self._stub.PublishVersion(request, timeout=CALL_SECONDS)
        )
        return set(answer.pinned_versions)

    def retire(self, weights: Iterable[PublishedWeights]) -> None:
        """Reports that the files of these versions are deleted."""
        request = synchronizer_pb2.RetireVersionsRequest(
            experiment_id=self._key.experiment_id,
            versions=[self._to_proto(gone) for gone in weights],
        )
        self._patience.call(lambda: self._stub.RetireVersions(request, timeout=CALL_SECONDS))

    def finish(self, final: PublishedWeights) -> None:
        """Reports that the trainer's part of the stage is done."""
        request = synchronizer_pb2.FinishRoleRequest(
            experiment_id=self._key.experiment_id,
            stage=self._key.stage,
            role=synchronizer_pb2.ROLE_TRAINER,
            final_version=self._to_proto(final),
        )
        self._patience.call(lambda: self._stub.FinishRole(request, timeout=CALL_SECONDS))

    def _to_proto(self, weights: PublishedWeights) -> synchronizer_pb2.Version:
        return synchronizer_pb2.Version(
            stage=self._key.stage,
            version=weights.version,
            incarnation=weights.incarnation,
            kind=synchronizer_pb2.Version.KIND_FULL,
            path=str(weights.path),
            manifest_sha256=weights.manifest_sha256,
            weights_sha256=weights.weights_sha256,
            parent_version=weights.parent,
            offer=_offer(weights),
        )


def _offer(weights: PublishedWeights) -> synchronizer_pb2.TransferOffer | None:
    if weights.offer is None:
        return None
    return synchronizer_pb2.TransferOffer(address=weights.offer.address, group=weights.offer.group)


def _from_proto(version: synchronizer_pb2.Version) -> PublishedWeights:
    return PublishedWeights(
        version=version.version,
        incarnation=version.incarnation,
        path=Path(version.path),
        manifest_sha256=version.manifest_sha256,
        weights_sha256=version.weights_sha256,
        parent=version.parent_version,
    )
