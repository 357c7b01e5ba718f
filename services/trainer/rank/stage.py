"""Runs one life of the trainer in a stage: builds its parts, then trains or publishes."""

import gc
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from services.trainer.checkpoints.best import BestVersion
from services.trainer.checkpoints.checkpoints import CheckpointStore
from services.trainer.checkpoints.damage import DamageWatch, retire_damaged
from services.trainer.checkpoints.publisher import TransferServer, WeightsPublisher
from services.trainer.checkpoints.weights import ModelFiles, WeightsStore
from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
from services.trainer.collectives import Ranks
from services.trainer.data.batches import BatchSource
from services.trainer.messages import RankStageEnded, StageOrder
from services.trainer.rank.device_turns import OwnDevice, RankTurns, SharedDevice
from services.trainer.rank.incarnation import Incarnation, begin_incarnation, latest_start
from services.trainer.rank.link import RankLink
from services.trainer.rank.loop import LoopDependencies, TrainingLoop
from services.trainer.rank.model_parts import (
    ModelParts,
    default_num_threads,
    row_reader,
    starting_directory,
)
from services.trainer.telemetry import StepTelemetry
from services.trainer.types import StageLearner, WeightsOnDisk
from trinity.api.v1 import buffer_pb2
from trinity.config.plan.stage_plan import StagePlan, keeps_best
from trinity.config.plan.start_checkpoint import (
    StartCheckpoint,
    check_start_checkpoint,
    find_start_checkpoint,
    verify_start_checkpoint,
)
from trinity.errors import ManifestError, RunFailed, Superseded
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.device_lock import device_lock_path
from trinity.runtime.life import LifeSigns
from trinity.runtime.members import MemberPhase
from trinity.runtime.retry import RpcRetry
from trinity.runtime.rpc.channel import open_sync_channel
from trinity.types import StageKey
from trinity.weights.ledger import LedgerKey, WeightsLedger
from trinity.weights.manifest import bytes_below, verify
from trinity.weights.offer import TransferTimeouts
from trinity.weights.stored import BEST_FOLDER

logger = logging.getLogger(__name__)


def run_stage(
    order: StageOrder, *, ranks: Ranks, link: RankLink, parts: ModelParts
) -> RankStageEnded:
    """Runs one life of the trainer in the stage, from its first call to its last.

    Raises: the error that made it fail; StopRequested when the service wants this rank to exit.
    """
    with ExitStack() as stack:
        try:
            return RankStageSetup(
                order, ranks=ranks, link=link, parts=parts, stack=stack
            ).run_order()
        except Superseded as error:
            return RankStageEnded(outcome="superseded", reason=str(error))
        finally:
            gc.unfreeze()
            gc.collect()


class RankStageSetup:
    """Builds everything a run needs, in order of dependency."""

    def __init__(
        self,
        order: StageOrder,
        *,
        ranks: Ranks,
        link: RankLink,
        parts: ModelParts,
        stack: ExitStack,
    ) -> None:
        self._order = order
        self._ranks = ranks
        self._link = link
        self._parts = parts
        self._stack = stack
        self._plan = _plan_of(order)
        self._directory = Path(order.job_dir) / "stages" / order.stage
        key = StageKey(tenant=order.tenant, experiment_id=order.experiment_id, stage=order.stage)
        self._key = key
        self._damage: DamageWatch | None = None
        buffer_channel = stack.enter_context(open_sync_channel(order.buffer_address))
        synchronizer_channel = stack.enter_context(open_sync_channel(order.synchronizer_address))
        link.close_channels_on_stop([buffer_channel, synchronizer_channel])
        self._buffer = TrainerBufferClient(
            channel=buffer_channel, key=key, retry=self._retry("buffer")
        )
        self._synchronizer = TrainerSynchronizerClient(
            channel=synchronizer_channel, key=key, retry=self._retry("synchronizer")
        )
        self._turns = self._device_turns()
        self._life = LifeSigns(self._report_alive)

    def run_order(self) -> RankStageEnded:
        """Resumes and trains, unless an earlier life had only to report that it was done."""
        load_plugins(plugin_dirs_from_environment())
        self._parts.make_deterministic(self._plan.num_threads or default_num_threads())
        self._link.report_activity("opening the stage", 0, 0, MemberPhase.PREPARING)
        total_steps = self._total_steps()
        is_bench = self._plan.benched is not None
        life = begin_incarnation(
            self._buffer,
            self._order.trainer_id,
            self._ranks,
            resumes=not is_bench,
            latest_start=partial(latest_start, self._plan, self._intact_version),
            life=self._life,
        )
        self._link.set_incarnation(life.number)
        if self._ranks.is_first:
            life.set_lost_files_aside(self._directory, self._synchronizer.versions)
        if self._was_finished(life):
            return RankStageEnded(outcome="finished", reason="an earlier life had finished it")
        start = self._starting_directory(self._order.start_path, self._order.start_manifest_sha256)
        self._link.report_activity("loading the model", life.step, 0, MemberPhase.PREPARING)
        learner = self._learner(life, start)
        if is_bench:
            return self._evaluate_checkpoints(life, start, learner)
        return self._train(life, start, learner, total_steps)

    def _learner(self, life: Incarnation, start: Path) -> StageLearner:
        make = partial(
            self._parts.make_learner,
            plan=self._plan,
            model_directory=start,
            ranks=self._ranks,
            critic_directory=self._critic_directory(start),
            teacher_directory=self._teacher_directory(),
            start_checkpoint=resume_source(
                self._plan, has_checkpoint=life.checkpoint is not None, ranks=self._ranks
            ),
            on_micro_batch=self._report_alive,
        )

        def make_watched() -> StageLearner:
            with self._life.on_disk(bytes_below(start)):
                return make()

        learner = self._turns.build(make_watched)
        gc.collect()
        gc.freeze()  # else each full collection, as at the end of a turn, walks all of verl
        return learner

    def _report_alive(self) -> None:
        self._link.report_alive()
        self._turns.show_life()

    def _device_turns(self) -> RankTurns:
        """Returns the turns on a device that the engine uses too, if the plan says so."""
        if not self._plan.takes_turns:
            return OwnDevice()
        turns = SharedDevice(
            device_lock_path(Path(self._order.job_dir)),
            synchronizer=self._synchronizer,
            stop=self._link.stop,
            waits=self._link.waits,
            silence_seconds=self._plan.config.synchronizer.sync_timeout,
            keeps_device=not self._plan.needs_rollout,
        )
        self._stack.callback(turns.close)
        return turns

    def _evaluate_checkpoints(
        self, life: Incarnation, start: Path, learner: StageLearner
    ) -> RankStageEnded:
        return CheckpointEvaluation(
            ranks=self._ranks,
            life=life,
            learner=learner,
            buffer=self._buffer,
            publisher=self._publisher(life, self._weights_store(life, start)),
            signs=self._life,
        ).publish_all()

    def _train(
        self, life: Incarnation, start: Path, learner: StageLearner, total_steps: int | None
    ) -> RankStageEnded:
        self._damage = self._damage or self._watch_damage()
        store = self._weights_store(life, start)
        dependencies = LoopDependencies(
            plan=self._plan,
            ranks=self._ranks,
            life=life,
            learner=learner,
            buffer=self._buffer,
            source=self._source(life, start),
            publisher=self._publisher(life, store),
            checkpoints=self._checkpoints(life, store),
            telemetry=self._telemetry(life),
            total_steps=total_steps,
            is_stopping=self._link.save.is_set,
            report=self._link.report_activity,
            turns=self._turns,
        )
        return TrainingLoop(dependencies).train_to_end()

    def _telemetry(self, life: Incarnation) -> StepTelemetry:
        algorithm = self._plan.algorithm_type
        return StepTelemetry(key=self._key, incarnation=life.number, algorithm=algorithm)

    def _starting_directory(self, path: str, manifest_sha256: str = "") -> Path:
        return starting_directory(
            path, manifest_sha256, ranks=self._ranks, waits=self._link.waits, life=self._life
        )

    def _retry(self, peer: str) -> RpcRetry:
        return RpcRetry(
            peer=peer,
            seconds=self._plan.config.synchronizer.sync_timeout,
            stop=self._link.stop,
            waits=self._link.waits,
        )

    def _total_steps(self) -> int | None:
        """Returns the smaller of the plan's and the data's steps; None when neither has an end."""
        opened = None
        if self._ranks.is_first:
            opened = self._buffer.open_stage(self._order.plan_json, self._order.seed)
        (known,) = self._ranks.broadcast_ints([opened or 0])
        return min(filter(None, (known, self._plan.total_train_steps)), default=None)

    def _was_finished(self, life: Incarnation) -> bool:
        """Reports again that the stage is done, if its final version exists and is intact."""
        if not life.finished_step:
            return False
        is_done = 0
        if self._ranks.is_first:
            retire_damaged(self._synchronizer, life.finished_step)
            final = self._intact_version(life.finished_step)
            if final is not None and final.is_whole and self._keep_best(life):
                self._synchronizer.finish_role(final)
                is_done = 1
        return self._ranks.broadcast_ints([is_done]) == [1]

    def _keep_best(self, life: Incarnation) -> bool:
        """Waits for the evaluations that the earlier life has left, and keeps the best version.

        Returns false if weights are damaged meanwhile: the checkpoint has them.
        """
        best, is_stopping = self._best_version(), self._link.save.is_set
        if best is None:
            return True
        self._damage = self._watch_damage()
        ended = self._buffer.await_evaluations(
            life.finished_step, life.number, lambda: is_stopping() or self._has_damage()
        )
        if ended is not None:
            best.copy_first(ended.best, self._synchronizer.versions())
        return ended is not None or is_stopping()

    def _has_damage(self) -> bool:
        return self._damage is not None and self._damage.has_damage

    def _best_version(self) -> BestVersion | None:
        keeps = keeps_best(self._plan) and self._ranks.is_first
        return BestVersion(self._directory / BEST_FOLDER) if keeps else None

    def _intact_version(self, version: int) -> WeightsOnDisk | None:
        for weights in sorted(self._synchronizer.versions(), reverse=True):
            if weights.version == version:
                try:
                    verify(weights.path, weights.manifest_sha256, life=self._life)
                except ManifestError as error:
                    logger.warning("the final version is damaged", extra={"reason": str(error)})
                    continue
                return weights
        return None

    def _critic_directory(self, start: Path) -> Path:
        """Returns the actor's start, unless the user configured a model for the critic."""
        path = self._plan.critic_model_path
        if path is None or not self._plan.config.model.critic_model_path:
            return start
        return self._starting_directory(path)

    def _teacher_directory(self) -> Path | None:
        path = self._plan.teacher_model_path
        return self._starting_directory(path) if path is not None else None

    def _source(self, life: Incarnation, start: Path) -> BatchSource:
        source = BatchSource(
            buffer=self._buffer,
            ranks=self._ranks,
            incarnation=life.number,
            reader=row_reader(self._plan, start, self._parts, self._buffer.read_media),
            fetches_ahead=not self._plan.needs_rollout,
            timeout_seconds=self._plan.experience_buffer.max_read_timeout,
            incomplete_after=self._plan.experience_buffer.incomplete_after,
            stop=self._link.stop,
            waits=self._link.waits,
            has_damage=self._has_damage,
            is_stopping=self._link.save.is_set,
        )
        self._link.interrupt_on_save(self._buffer.interrupt_poll)
        self._stack.callback(source.cancel_prefetch)
        return source

    def _publisher(self, life: Incarnation, store: WeightsStore) -> WeightsPublisher:
        return WeightsPublisher(
            store=store,
            buffer=self._buffer,
            synchronizer=self._synchronizer,
            ranks=self._ranks,
            incarnation=life.number,
            server=self._transfer_server(),
            damage=self._damage,
            best=self._best_version(),
        )

    def _watch_damage(self) -> DamageWatch | None:
        """Starts to follow reports of damaged weights, if explorers load any."""
        if not (self._ranks.is_first and self._plan.needs_rollout):
            return None
        watch = DamageWatch(self._synchronizer, on_damage=self._buffer.interrupt_poll)
        watch.start()
        self._stack.callback(watch.stop)
        return watch

    def _weights_store(self, life: Incarnation, start: Path) -> WeightsStore:
        dtype = self._plan.config.trainer.dtype
        files = ModelFiles(
            copy=self._directory / "model_files",
            dtype=dtype,
            chat_template=self._plan.chat_template,
            model=self._plan.config.model,
        )
        store = WeightsStore(
            root=self._directory / "weights",
            stage=self._order.stage,
            files=files,
            dtype=getattr(torch, dtype),
            ledger=self._ledger(),
            sha256_until=life.sha256_until(self._plan),
            life=self._life,
        )
        if self._ranks.is_first:
            files.copy_from(start)
            store.load_announced(self._synchronizer.versions(), life.number)
        return store

    def _ledger(self) -> WeightsLedger | None:
        """Creates the ledger of announced weights; the first rank writes it."""
        if not self._ranks.is_first:
            return None
        key = LedgerKey.create(Path(self._order.job_dir))
        return WeightsLedger(folder=self._directory, stage=self._order.stage, key=key)

    def _transfer_server(self) -> TransferServer | None:
        """Creates the transfer server of weights from memory, if the stage uses one."""
        if not (self._plan.transfers_weights_in_memory and self._ranks.is_first):
            return None
        sync = self._plan.config.synchronizer
        server = TransferServer(
            host=self._order.transfer_host,
            name=sync.group_name,
            limits=TransferTimeouts.within(sync.sync_timeout),
        )
        self._stack.callback(server.close_server)
        return server

    def _checkpoints(self, life: Incarnation, models: WeightsStore) -> CheckpointStore:
        store = CheckpointStore(
            root=self._directory / "checkpoints",
            stage=self._order.stage,
            ranks=self._ranks,
            models=models if "hf_model" in self._plan.config.trainer.save_contents else None,
            life=self._life,
        )
        if self._ranks.is_first:
            store.remove_uncommitted(life.committed, life.number)
        return store


def _plan_of(order: StageOrder) -> StagePlan:
    """Returns the plan; a starting adapter is the user's, so it is dropped after another stage."""
    plan = StagePlan.model_validate_json(order.plan_json)
    follows = bool(order.start_manifest_sha256)
    return plan.model_copy(update={"adapter_path": None}) if follows else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvaluation:
    """One life of the trainer in mode bench: it publishes checkpoints for evaluation.

    A later life gets only the checkpoints that are not evaluated yet, and the newest.
    """

    ranks: Ranks
    life: Incarnation
    learner: StageLearner
    buffer: TrainerBufferClient
    publisher: WeightsPublisher
    signs: LifeSigns

    def publish_all(self) -> RankStageEnded:
        """Publishes the versions in order; the buffer has each evaluated.

        Raises: RunFailed when a checkpoint cannot be read.
        """
        step = 0
        for checkpoint in sorted(self.life.checkpoints_to_evaluate, key=lambda found: found.step):
            step = checkpoint.step
            if checkpoint.path:
                self._check(checkpoint)
                self.learner.load(Path(checkpoint.path))
            self.publisher.publish(self.learner, step, checkpoint.lineage_sha256)
            logger.info("published a checkpoint for evaluation", extra={"version": step})
        if self.ranks.is_first:
            self.buffer.finish_training(step, self.life.number)
            self.publisher.finish_stage()
        return RankStageEnded(outcome="finished")

    def _check(self, checkpoint: buffer_pb2.Checkpoint) -> None:
        """Verifies the whole checkpoint on every rank: damage in any file fails all ranks.

        Raises: RunFailed.
        """
        try:
            verify(Path(checkpoint.path), checkpoint.manifest_sha256, life=self.signs)
        except ManifestError as error:
            raise RunFailed(
                f"the checkpoint of step {checkpoint.step} is damaged: {error}"
            ) from error


def resume_source(plan: StagePlan, *, has_checkpoint: bool, ranks: Ranks) -> StartCheckpoint | None:
    """Returns the checkpoint of a former run, as long as the stage needs it. Collective.

    Raises: UserError if it does not fit the plan.
    """
    path = plan.start_checkpoint
    if path is None or (has_checkpoint and not _is_adapter_base(plan, path)):
        return None
    check_start_checkpoint(plan)
    found = find_start_checkpoint(path)
    if ranks.is_first:
        verify_start_checkpoint(found)
    ranks.barrier()
    return found


def _is_adapter_base(plan: StagePlan, path: str) -> bool:
    """True if these weights are the base of the adapter's checkpoints, which do not hold them."""
    is_there = plan.lora is not None and Path(path).is_dir()
    return is_there and find_start_checkpoint(path).is_whole
