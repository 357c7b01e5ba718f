"""The training loop of a stage: batches in, steps trained, weights, reports and checkpoints out."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from services.trainer.checkpoints.checkpoints import CheckpointStore
from services.trainer.checkpoints.publisher import WeightsPublisher, WrittenWeights
from services.trainer.clients import BatchResult, NoBatchReason, TrainerBufferClient
from services.trainer.collectives import Ranks
from services.trainer.data.batches import BatchSource
from services.trainer.messages import RankStageEnded
from services.trainer.rank.device_turns import OwnDevice, RankTurns
from services.trainer.rank.incarnation import Incarnation
from services.trainer.telemetry import AnomalyChecks, StepTelemetry, has_trained_tokens
from services.trainer.types import StageLearner, StepOutcome, TrainBatch, batch_metrics
from trinity.config.plan.stage_plan import StagePlan, keeps_best
from trinity.errors import PreconditionFailed, RunFailed
from trinity.runtime.logs import as_fields
from trinity.runtime.origin import NOTHING_BEFORE, version_digest
from trinity.runtime.telemetry.tracing import Span

logger = logging.getLogger(__name__)

PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")
ActivityReport = Callable[[str, int, int], None]
"""Reports the rank's activity, the newest step reported and the newest version published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step whose weights and report are not sent yet."""

    batch: TrainBatch
    outcome: StepOutcome
    span: Span
    """The span of the whole step, which ends with its report."""
    weights: WrittenWeights | None
    """What explorers need, on disk and not announced; None where they need none."""
    write_seconds: float
    """Time in which it was written."""
    batch_wait_seconds: float
    """Time that it waited for the batch."""
    train_seconds: float
    compute_seconds: float
    """Time from the batch until the next step could begin, apart from sending weights and
    report."""
    save_seconds: float | None = None
    """Time of a checkpoint that was written after the previous step."""

    def step_metrics(
        self, plan: StagePlan, *, publish_seconds: float, runs_in_background: bool
    ) -> dict[str, float]:
        """Returns the metrics to report for the step."""
        metrics = self.outcome.metrics | batch_metrics(
            self.batch,
            max_prompt_tokens=plan.max_prompt_tokens,
            max_response_tokens=plan.max_response_tokens,
        )
        step_seconds = self.batch_wait_seconds + self.compute_seconds
        if not runs_in_background:
            step_seconds += publish_seconds
        metrics["time/read_experience"] = self.batch_wait_seconds
        metrics["time/train_step"] = self.train_seconds
        metrics["time/sync_weight"] = self.write_seconds + publish_seconds
        if self.save_seconds is not None:
            metrics["time/save_checkpoint"] = self.save_seconds
        metrics["time/step"] = metrics["perf/time_per_step"] = step_seconds
        num_tokens = metrics["perf/total_num_tokens"]
        metrics["perf/throughput"] = num_tokens / step_seconds
        metrics["perf/idle_share"] = self.batch_wait_seconds / step_seconds
        return metrics | _per_token(metrics, num_tokens)


def _per_token(metrics: Mapping[str, float], num_tokens: float) -> dict[str, float]:
    """Returns the milliseconds of the parts per token of the batch."""
    return {
        f"timing_per_token_ms/{part}": 1000 * metrics[f"time/{part}"] / num_tokens
        for part in PER_TOKEN
        if f"time/{part}" in metrics and num_tokens
    }


class AsyncPublish:
    """Publishes and reports one step at a time, in order; in a thread if `in_background`.

    At most one step's work is open while the next step is trained. Code that waits for something
    else calls `raise_if_failed` meanwhile, so that an error surfaces at once.

        async_publish.submit(lambda: publish_and_report(step))   # raises the previous step's error
        async_publish.wait()
    """

    def __init__(self, *, in_background: bool) -> None:
        self._executor = ThreadPoolExecutor(1, "async-publish") if in_background else None
        self._open: Future[None] | None = None

    @property
    def runs_in_background(self) -> bool:
        """True if the work runs while the next step is trained."""
        return self._executor is not None

    def submit(self, work: Callable[[], None]) -> None:
        """Starts the work once the previous work is done.

        Raises: the error of the previous work, or of this work if it is done at once.
        """
        self.wait()
        if self._executor is None:
            work()
        else:
            self._open = self._executor.submit(work)

    def raise_if_failed(self) -> None:
        """Raises the error of the open work, if it has failed."""
        if self._open is not None and self._open.done():
            self.wait()

    def wait(self) -> None:
        """Waits until no work is open.

        Raises: the error of that work.
        """
        work, self._open = self._open, None
        if work is not None:
            work.result()

    def shutdown_executor(self) -> None:
        """Accepts no more work; open work ends by itself, or with its channel."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDependencies:
    """The collaborators of the training loop."""

    plan: StagePlan
    ranks: Ranks
    life: Incarnation
    learner: StageLearner
    buffer: TrainerBufferClient
    source: BatchSource
    publisher: WeightsPublisher
    checkpoints: CheckpointStore
    telemetry: StepTelemetry
    total_steps: int | None
    """None when only the buffer knows where the data ends."""
    is_stopping: Callable[[], bool]
    """True once the step in hand is to be saved, and no further one trained."""
    report: ActivityReport
    turns: RankTurns = field(default_factory=OwnDevice)
    """When the learner may be on its device."""


class TrainingLoop:
    """Runs a stage to its end.

    ended = TrainingLoop(dependencies).train_to_end()
    """

    def __init__(self, dependencies: LoopDependencies) -> None:
        self._deps = dependencies
        self._anomaly_checks = AnomalyChecks()
        sync = dependencies.plan.config.synchronizer
        self._interval = sync.sync_interval
        self._async_publish = AsyncPublish(
            in_background=dependencies.plan.needs_rollout and dependencies.plan.is_asynchronous
        )
        self._publishes_on_request = sync.sync_style == "explorer_driven"
        self._step = self._reported = dependencies.life.step
        self._lineage = dependencies.life.lineage_sha256
        self._published = -1
        self._saved = dependencies.life.step if dependencies.life.checkpoint else -1
        self._save_seconds: float | None = None

    def train_to_end(self) -> RankStageEnded:
        """Trains until the steps or the data end.

        Raises: any error that ends a run early; no recorded work is lost.
        """
        try:
            return self._train_to_end()
        except PreconditionFailed as error:
            raise RunFailed(f"{error}{self._deps.life.unread_checkpoints()}") from error
        finally:
            self._give_device_back()
            self._async_publish.shutdown_executor()

    def _on_device(self, reason: str) -> AbstractContextManager[None]:
        return self._deps.turns.on_device(self._deps.learner, reason)

    def _give_device_back(self) -> None:
        self._deps.turns.give_back(self._deps.learner)

    def _train_to_end(self) -> RankStageEnded:
        with self._on_device("to begin where it stands"):
            self._resume()
        while self._deps.total_steps is None or self._step < self._deps.total_steps:
            asked = time.perf_counter()
            span = self._deps.telemetry.begin_step_span(self._step + 1)
            with span.attached():
                answer = self._next_batch()
            if answer.state is NoBatchReason.VERSION_WANTED:
                self._async_publish.wait()
                with self._on_device("to publish weights"):
                    self._publish()
                continue
            if answer.state is NoBatchReason.WEIGHTS_DAMAGED:
                self._async_publish.wait()
                with self._on_device("to write damaged weights again"):
                    self._replace_damaged()
                continue
            if answer.state is NoBatchReason.STOPPING:
                return self._save_and_stop()
            if answer.state is NoBatchReason.CANCELLED:
                return RankStageEnded(outcome="cancelled", reason=answer.reason)
            if answer.batch is None:
                break
            with span.attached(), self._on_device(f"to train step {answer.batch.step}"):
                self._train(answer.batch, time.perf_counter() - asked, span)
        return self._finish()

    def _next_batch(self) -> BatchResult:
        step = self._step + 1
        if self._deps.turns.is_kept and not self._deps.source.has_batch(step):
            self._give_device_back()  # another process may want it before the batch comes
        return self._deps.source.next_batch(
            step, is_last=self._is_last(step), check=self._async_publish.raise_if_failed
        )

    def _resume(self) -> None:
        """Loads the checkpoint; publishes at once unless recorded batches come first."""
        life = self._deps.life
        if life.checkpoint is not None:
            self._deps.learner.load(life.checkpoint)
            if self._deps.plan.lora is not None:
                self._deps.checkpoints.check_adapter_base(self._deps.learner, life.checkpoint)
        logger.info(
            "a new incarnation of the trainer",
            extra={
                "incarnation": life.number,
                "from_step": life.step,
                "recorded_step": life.recorded_step,
            },
        )
        self._check_determinism()
        self._publish_due_version()

    def _publish_due_version(self) -> None:
        """Publishes the newest version due: no work is handed out before this life has."""
        due = self._version_to_republish()
        if self._must_publish(self._step):
            self._publish()
        elif self._deps.plan.needs_rollout and due < self._step:
            if self._deps.publisher.republish(due):
                self._published = due
            else:
                logger.warning(
                    "publishing newer weights in place of a version", extra={"version": due}
                )
                self._publish()

    def _train(self, batch: TrainBatch, waited_seconds: float, span: Span) -> None:
        """Trains one step, hands its weights and report to be published, and saves if due."""
        started = time.perf_counter()
        self._report_activity("training again" if batch.replayed else "training")
        self._log("train step began", batch.step, rows=len(batch.rows), replayed=batch.replayed)
        outcome = self._train_step(batch)
        self._step = batch.step
        rows = batch.rows_sha256
        self._lineage = version_digest(self._lineage, rows) if rows else NOTHING_BEFORE
        trained = time.perf_counter()
        self._check_determinism()
        checked = time.perf_counter()
        weights = self._write_weights()
        written = time.perf_counter()
        self._async_publish.wait()
        done = PendingStep(
            batch=batch,
            outcome=outcome,
            span=span,
            weights=weights,
            write_seconds=written - checked if weights is not None else 0.0,
            batch_wait_seconds=waited_seconds,
            train_seconds=trained - started,
            compute_seconds=time.perf_counter() - started,
            save_seconds=self._save_seconds,
        )
        self._save_seconds = None
        self._async_publish.submit(lambda: self._finish_step(done))
        save_interval = self._deps.plan.config.trainer.save_interval
        if save_interval and batch.step % save_interval == 0:
            self._async_publish.wait()
            self._save()

    def _train_step(self, batch: TrainBatch) -> StepOutcome:
        plan, total_steps = self._deps.plan, self._deps.total_steps
        if not has_trained_tokens(batch, may_lack=plan.experience_buffer.on_bad_row == "skip"):
            return StepOutcome(metrics={}, rows={})
        with self._deps.telemetry.training(batch):
            return self._deps.learner.train_step(
                batch,
                plan.learning_rate(batch.step, total_steps),
                plan.critic_learning_rate(batch.step, total_steps),
            )

    def _write_weights(self) -> WrittenWeights | None:
        """Writes the weights if explorers need this version; they must not change meanwhile."""
        if not self._must_publish(self._step):
            return None
        return self._deps.publisher.write_weights(
            self._deps.learner, self._step, self._lineage, is_last=self._is_last(self._step)
        )

    def _finish_step(self, done: PendingStep) -> None:
        with done.span.attached():
            self._publish_and_report(done)
        done.span.end()

    def _publish_and_report(self, done: PendingStep) -> None:
        started = time.perf_counter()
        if done.weights is not None:
            if not self._async_publish.runs_in_background:
                self._report_activity("publishing weights")
            with self._deps.telemetry.publishing(done.batch.step):
                self._deps.publisher.seal_and_announce(done.weights)
            self._log("weights published", done.batch.step)
        if self._must_publish(done.batch.step):
            self._published = done.batch.step
        metrics = done.step_metrics(
            self._deps.plan,
            publish_seconds=time.perf_counter() - started,
            runs_in_background=self._async_publish.runs_in_background,
        )
        checked = self._anomaly_checks.check_step(done.batch, metrics)
        self._deps.telemetry.trained(done.batch, metrics)
        self._log("train step ended", done.batch.step, **checked)
        self._report(done.batch.step, StepOutcome(metrics=checked, rows=done.outcome.rows))

    def _report(self, step: int, outcome: StepOutcome) -> None:
        """Reports the step on the first rank."""
        if self._deps.ranks.is_first:
            kept = self._deps.buffer.report_step(step, self._deps.life.number, outcome)
            self._deps.publisher.keep_versions(kept)
        self._reported = step
        self._report_activity("training")

    def _is_last(self, step: int) -> bool:
        return step == self._deps.total_steps

    def _must_publish(self, step: int) -> bool:
        """True if explorers need this version from this life; `_finish` handles the final one."""
        if not self._deps.plan.needs_rollout:
            return False
        life = self._deps.life
        if self._publishes_on_request:
            return step == self._version_to_republish() or self._is_last(step)
        if step < life.recorded_step:
            is_owed = step > life.last_published_version
            newest = step == self._version_to_republish()
            return step % self._interval == 0 and (is_owed or newest)
        return step % self._interval == 0 or self._is_last(step)

    def _version_to_republish(self) -> int:
        """Returns the newest version due by recorded steps, or the newest requested one."""
        life = self._deps.life
        if self._publishes_on_request:
            return max(life.last_published_version, 0)
        return life.version_to_republish(self._interval)

    def _publish(self) -> None:
        self._report_activity("publishing weights")
        is_new = self._step == self._deps.life.step
        with self._deps.telemetry.publishing(self._step, begins_trace=is_new):
            self._deps.publisher.publish(self._deps.learner, self._step, self._lineage)
        self._published = self._step
        self._log("weights published", self._step)

    def _replace_damaged(self) -> None:
        """Writes damaged weights again; publishes the current ones if the newest are lost."""
        self._report_activity("writing damaged weights again")
        is_newest_lost = self._deps.publisher.replace_damaged(self._deps.learner, self._step)
        if is_newest_lost and self._published < self._step:
            self._publish()

    def _save(self) -> None:
        self._report_activity("saving a checkpoint")
        started = time.perf_counter()
        with self._deps.telemetry.saving(self._step):
            written = self._deps.checkpoints.write(
                self._deps.learner, step=self._step, incarnation=self._deps.life.number
            )
            self._saved = self._step
            if self._deps.ranks.is_first:
                written = replace(written, lineage_sha256=self._lineage)
                removable = self._deps.buffer.commit_checkpoint(written)
                self._deps.checkpoints.delete_checkpoints(removable)
        self._save_seconds = time.perf_counter() - started
        self._log("checkpoint saved", self._step, seconds=self._save_seconds)

    def _save_and_stop(self) -> RankStageEnded:
        self._async_publish.wait()
        if self._step > self._deps.life.step and self._saved != self._step:
            with self._on_device("to save the step in hand"):
                self._save()
        if self._deps.ranks.is_first:
            self._deps.publisher.make_newest_whole()
        return RankStageEnded(outcome="stopped")

    def _finish(self) -> RankStageEnded:
        self._async_publish.wait()
        if self._published != self._step or self._saved != self._step:
            with self._on_device("to end the stage"):
                self._write_final_state()
        self._give_device_back()
        if self._deps.ranks.is_first:
            self._deps.buffer.finish_training(self._step, self._deps.life.number)
            if keeps_best(self._deps.plan):
                self._report_activity("waiting for the last evaluation")
                ended = self._deps.buffer.await_evaluations(
                    self._step,
                    self._deps.life.number,
                    lambda: self._deps.is_stopping() or self._deps.publisher.has_damage,
                )
                if ended is None:
                    is_stopping = self._deps.is_stopping()
                    return RankStageEnded(outcome="stopped" if is_stopping else "again")
                if ended.is_cancelled:
                    return RankStageEnded(outcome="cancelled", reason=ended.reason)
                self._deps.publisher.copy_best(ended.best)
            self._deps.publisher.finish_stage()
        self._report_activity("finished the stage")
        return RankStageEnded(outcome="finished")

    def _write_final_state(self) -> None:
        if self._published != self._step:
            self._publish()
        if self._saved != self._step:
            self._save()

    def _check_determinism(self) -> None:
        """Compares this life's weights with those that the previous life had published."""
        life = self._deps.life
        if self._step != life.last_published_version:
            return
        known = life.last_published
        root = self._deps.publisher.current_root(
            self._deps.learner, "blake3" if known.weights_blake3 else "sha256"
        )
        identical = root == (known.weights_blake3 or known.weights_sha256)
        log = logger.info if identical else logger.warning
        log(
            "weights trained again compared with those published before",
            extra={"version": self._step, "identical": identical},
        )

    def _log(self, what: str, step: int, **fields: float) -> None:
        """Logs what happened in a step, on the first rank alone."""
        if self._deps.ranks.is_first:
            rounded = {name: _rounded(value) for name, value in fields.items()}
            logger.info(what, extra={"step": step, **as_fields(rounded)})

    def _report_activity(self, activity: str) -> None:
        self._deps.report(activity, self._reported, max(self._published, 0))


def _rounded(value: float) -> float:
    """Rounds to six digits, as a line is read by people; whole numbers stay."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
