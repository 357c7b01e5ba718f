"""A train step after its optimizer step and before its report."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.trainer.checkpoints.checkpoints import CheckpointStore
from services.trainer.checkpoints.publisher import WeightsPublisher
from services.trainer.checkpoints.weights import WeightTensors
from services.trainer.clients import NoBatchReason, TrainerBufferClient
from services.trainer.collectives import Ranks
from services.trainer.data.batches import BatchSource
from services.trainer.learner.metrics import batch_metrics
from services.trainer.messages import RankStageEnded
from services.trainer.rank.anomaly_checks import AnomalyChecks
from services.trainer.rank.incarnation import Incarnation
from services.trainer.telemetry import StepTelemetry
from services.trainer.types import StageLearner, StepOutcome, TrainBatch
from trinity.config.plan.stage_plan import StagePlan
from trinity.telemetry import tracing
from trinity.telemetry.tracing import Span

logger = logging.getLogger(__name__)


PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step whose weights and report are not sent yet."""

    batch: TrainBatch
    outcome: StepOutcome
    span: Span
    """The span of the whole step, which ends with its report."""
    weights: WeightTensors | None
    waited_seconds: float
    """Time that it waited for the batch."""
    train_seconds: float
    busy_seconds: float
    """Time from the batch until the next step could begin, apart from sending weights and
    report."""
    save_seconds: float | None = None
    """Time of a checkpoint that was written after the previous step."""

    def figures(
        self, plan: StagePlan, *, publish_seconds: float, is_beside: bool
    ) -> dict[str, float]:
        """Returns the metrics to report for the step."""
        figures = self.outcome.metrics | batch_metrics(
            self.batch,
            max_prompt_tokens=plan.max_prompt_tokens,
            max_response_tokens=plan.max_response_tokens,
        )
        step_seconds = self.waited_seconds + self.busy_seconds
        if not is_beside:
            step_seconds += publish_seconds
        figures["time/read_experience"] = self.waited_seconds
        figures["time/train_step"] = self.train_seconds
        figures["time/sync_weight"] = publish_seconds
        if self.save_seconds is not None:
            figures["time/save_checkpoint"] = self.save_seconds
        figures["time/step"] = figures["perf/time_per_step"] = step_seconds
        num_tokens = figures["perf/total_num_tokens"]
        figures["perf/throughput"] = num_tokens / step_seconds
        return figures | _per_token(figures, num_tokens)


def _per_token(figures: Mapping[str, float], num_tokens: float) -> dict[str, float]:
    """Returns the milliseconds of the parts per token of the batch."""
    return {
        f"timing_per_token_ms/{part}": 1000 * figures[f"time/{part}"] / num_tokens
        for part in PER_TOKEN
        if f"time/{part}" in figures and num_tokens
    }


class AsyncPublish:
    """Does one step's work at a time, in order; with `beside`, in a thread of its own.

    At most one step's work is open beside the next step. Code that waits for something else calls
    `check` meanwhile, so that an error surfaces at once and not an hour later.

        follow_up.begin(lambda: publish_and_report(step))   # raises the previous step's error
        follow_up.wait()
    """

    def __init__(self, *, beside: bool) -> None:
        self._executor = ThreadPoolExecutor(1, "follow-up") if beside else None
        self._open: Future[None] | None = None

    @property
    def is_beside(self) -> bool:
        """True if the work runs while the next step is trained."""
        return self._executor is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Starts the work once the previous work is done.

        Raises: what the previous work raised, or this work where it is not done beside.
        """
        self.wait()
        if self._executor is None:
            work()
        else:
            self._open = self._executor.submit(work)

    def check(self) -> None:
        """Raises: what the open work has raised, if it is done."""
        if self._open is not None and self._open.done():
            self.wait()

    def wait(self) -> None:
        """Waits until no work is open.

        Raises: what it raised.
        """
        work, self._open = self._open, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Accepts no more work; what is open ends by itself, or with its channel."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


ActivityReport = Callable[[str, int, int], None]
"""Reports the rank's activity, the newest step reported and the newest version published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDependencies:
    """The collaborators of a run."""

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
    report: ActivityReport


class TrainingLoop:
    """Runs a stage to its end.

    ended = TrainingLoop(parts).run()
    """

    def __init__(self, parts: LoopDependencies) -> None:
        self._parts = parts
        self._watch = AnomalyChecks()
        sync = parts.plan.config.synchronizer
        self._interval = sync.sync_interval
        self._follow_up = AsyncPublish(
            beside=parts.plan.needs_rollout and parts.plan.is_asynchronous
        )
        self._asked = sync.sync_style == "explorer_driven"
        self._step = self._reported = parts.life.step
        self._published = -1
        self._saved = parts.life.step if parts.life.checkpoint else -1
        self._save_seconds: float | None = None

    def run(self) -> RankStageEnded:
        """Trains until the steps or the data end.

        Raises: any error that ends a run early; no recorded work is lost.
        """
        try:
            return self._run()
        finally:
            self._follow_up.close()

    def _run(self) -> RankStageEnded:
        self._resume()
        while self._parts.total_steps is None or self._step < self._parts.total_steps:
            asked = time.perf_counter()
            span = self._parts.telemetry.begin(self._step + 1)
            with tracing.within(span):
                answer = self._parts.source.get(
                    self._step + 1,
                    is_last=self._is_last(self._step + 1),
                    check=self._follow_up.check,
                )
            if answer.state is NoBatchReason.VERSION_WANTED:
                self._follow_up.wait()
                self._publish()
                continue
            if answer.state is NoBatchReason.CANCELLED:
                return RankStageEnded(outcome="cancelled", reason=answer.reason)
            if answer.batch is None:
                break
            with tracing.within(span):
                self._train(answer.batch, time.perf_counter() - asked, span)
        self._finish()
        return RankStageEnded(outcome="finished")

    def _resume(self) -> None:
        """Loads the checkpoint; publishes at once unless recorded batches come first."""
        life = self._parts.life
        if life.checkpoint is not None:
            self._parts.learner.load(life.checkpoint)
            if self._parts.plan.lora is not None:
                self._parts.checkpoints.check_base(self._parts.learner, life.checkpoint)
        logger.info(
            "a new incarnation of the trainer",
            extra={
                "incarnation": life.number,
                "from_step": life.step,
                "recorded_step": life.recorded_step,
            },
        )
        self._compare_with_known()
        self._publish_what_explorers_wait_for()

    def _publish_what_explorers_wait_for(self) -> None:
        """Publishes the newest version due: no work is handed out before this life has."""
        due = self._version_to_republish()
        if self._is_due(self._step):
            self._publish()
        elif self._parts.plan.needs_rollout and due < self._step:
            if self._parts.publisher.adopt(due):
                self._published = due
            else:
                logger.warning(
                    "publishing newer weights in place of a version", extra={"version": due}
                )
                self._publish()

    def _train(self, batch: TrainBatch, waited_seconds: float, span: Span) -> None:
        """Trains one step, in the order that the module describes."""
        started = time.perf_counter()
        self._say("training again" if batch.replayed else "training")
        plan, total_steps = self._parts.plan, self._parts.total_steps
        with self._parts.telemetry.training(batch):
            outcome = self._parts.learner.train_step(
                batch,
                plan.learning_rate(batch.step, total_steps),
                plan.critic_learning_rate(batch.step, total_steps),
            )
        self._step = batch.step
        trained = time.perf_counter()
        self._compare_with_known()
        weights = None
        if self._is_due(batch.step):
            weights = self._parts.publisher.collect(
                self._parts.learner, copied=self._follow_up.is_beside
            )
        self._follow_up.wait()
        done = PendingStep(
            batch=batch,
            outcome=outcome,
            span=span,
            weights=weights,
            waited_seconds=waited_seconds,
            train_seconds=trained - started,
            busy_seconds=time.perf_counter() - started,
            save_seconds=self._save_seconds,
        )
        self._save_seconds = None
        self._follow_up.begin(lambda: self._follow(done))
        if (
            plan.config.trainer.save_interval
            and batch.step % plan.config.trainer.save_interval == 0
        ):
            self._follow_up.wait()
            self._save()

    def _follow(self, done: PendingStep) -> None:
        with tracing.within(done.span):
            self._publish_and_report(done)
        done.span.end()

    def _publish_and_report(self, done: PendingStep) -> None:
        started = time.perf_counter()
        if done.weights is not None:
            if not self._follow_up.is_beside:
                self._say("publishing weights")
            with self._parts.telemetry.publishing(done.batch.step):
                self._parts.publisher.announce(done.weights, done.batch.step)
        if self._is_due(done.batch.step):
            self._published = done.batch.step
        figures = done.figures(
            self._parts.plan,
            publish_seconds=time.perf_counter() - started,
            is_beside=self._follow_up.is_beside,
        )
        checked = self._watch.check(done.batch, figures)
        self._parts.telemetry.trained(done.batch, figures)
        self._report(done.batch.step, StepOutcome(metrics=checked, rows=done.outcome.rows))

    def _report(self, step: int, outcome: StepOutcome) -> None:
        """Reports the step on the first rank."""
        if self._parts.ranks.is_first:
            pinned = self._parts.buffer.report_step(step, self._parts.life.number, outcome)
            self._parts.publisher.note_evaluations(pinned)
        self._reported = step
        self._say("training")

    def _is_last(self, step: int) -> bool:
        return step == self._parts.total_steps

    def _is_due(self, step: int) -> bool:
        """True if explorers need this version from this life; `_finish` handles the final one."""
        if not self._parts.plan.needs_rollout:
            return False
        life = self._parts.life
        if self._asked:
            return step == self._version_to_republish() or self._is_last(step)
        if step < life.recorded_step:
            is_owed = step > life.known_version
            newest = step == self._version_to_republish()
            return step % self._interval == 0 and (is_owed or newest)
        return step % self._interval == 0 or self._is_last(step)

    def _version_to_republish(self) -> int:
        """Returns the newest version due by recorded steps, or the newest that was asked for."""
        life = self._parts.life
        if self._asked:
            return max(life.known_version, 0)
        return life.version_to_republish(self._interval)

    def _publish(self) -> None:
        self._say("publishing weights")
        is_new = self._step == self._parts.life.step
        with self._parts.telemetry.publishing(self._step, begins_trace=is_new):
            self._parts.publisher.publish(self._parts.learner, self._step)
        self._published = self._step

    def _save(self) -> None:
        self._say("saving a checkpoint")
        started = time.perf_counter()
        with self._parts.telemetry.saving(self._step):
            written = self._parts.checkpoints.write(
                self._parts.learner, step=self._step, incarnation=self._parts.life.number
            )
            self._saved = self._step
            if self._parts.ranks.is_first:
                removable = self._parts.buffer.commit_checkpoint(written)
                self._parts.checkpoints.remove(removable)
        self._save_seconds = time.perf_counter() - started

    def _finish(self) -> None:
        self._follow_up.wait()
        if self._published != self._step:
            self._publish()
        if self._saved != self._step:
            self._save()
        if self._parts.ranks.is_first:
            self._parts.buffer.finish_training(self._step, self._parts.life.number)
            self._parts.publisher.finish()
        self._say("finished the stage")

    def _compare_with_known(self) -> None:
        """Compares this life's weights with those that the previous life had published."""
        life = self._parts.life
        if self._step != life.known_version:
            return
        digest = self._parts.publisher.hash_now(self._parts.learner)
        identical = digest == life.known_weights_sha256
        log = logger.info if identical else logger.warning
        log(
            "weights trained again compared with those published before",
            extra={"version": self._step, "identical": identical},
        )

    def _say(self, activity: str) -> None:
        self._parts.report(activity, self._reported, max(self._published, 0))
