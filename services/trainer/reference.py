"""The reference policy: the stage's starting weights, which never change."""

from pathlib import Path

from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.adapter import Adapter
from services.trainer.calls import Calls
from services.trainer.prepared import PreparedBatch
from services.trainer.worker import build_reference
from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.config.plan import StagePlan


class PolicyWithoutAdapter:
    """The policy's own model with its adapter off, so that it is in memory only once."""

    def __init__(self, *, worker: TinkerTrainingWorker, adapter: Adapter, calls: Calls) -> None:
        self._worker = worker
        self._adapter = adapter
        self._calls = calls

    def logprobs(self, prepared: PreparedBatch) -> FloatMatrix:
        """Computes log-probabilities of the tokens, [B, T]."""
        with self._adapter.off():
            return self._calls.infer(self._worker, prepared, ["logprobs"])["logprobs"]


class Reference:
    """A policy that only computes log-probabilities. Collective."""

    def __init__(self, *, plan: StagePlan, model_directory: Path, calls: Calls) -> None:
        self._calls = calls
        self._worker = build_reference(plan, model_directory)

    def logprobs(self, prepared: PreparedBatch) -> FloatMatrix:
        """Computes log-probabilities of the tokens, [B, T]."""
        return self._calls.infer(self._worker, prepared, ["logprobs"])["logprobs"]
