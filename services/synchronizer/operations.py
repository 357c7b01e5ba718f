"""The operations of the synchronizer; each is one transaction, so any replica can run it."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.synchronizer.domain import (
    DeviceTurn,
    Experiment,
    ExperimentStageState,
    ExperimentState,
    PlannedStage,
    PublishedVersion,
    Role,
    TurnReport,
    VersionKey,
)
from services.synchronizer.members import ClosedWait, Member
from services.synchronizer.plan import (
    check_owner,
    directory_of,
    is_same_plan,
    keep_threads,
    longer_stages,
)
from services.synchronizer.store import experiments, members, versions
from services.synchronizer.store.database import SynchronizerDatabase, notify
from trinity.runtime.members import MemberPhase
from trinity.runtime.rpc.quotas import TenantQuota

MAX_EXPERIMENTS_LISTED = 100
MAX_PINNED_LISTED = 100_000
MEMBER_CLEANUP_SECONDS = 60.0
"""Interval at which this process deletes members that have been silent for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResult:
    """An experiment that was created or resumed."""

    experiment: Experiment
    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentWithPlan:
    """An experiment with its plan as JSON."""

    experiment: Experiment
    plan_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentUpdate:
    """An experiment with the versions of its running stage that can be loaded."""

    experiment: Experiment
    versions: tuple[PublishedVersion, ...]
    lost: tuple[PublishedVersion, ...] = ()
    """Versions that were damaged and could not be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemState:
    """Experiments, and the members that sent heartbeats recently."""

    experiments: tuple[Experiment, ...]
    members: tuple[Member, ...]
    closed_waits: tuple[ClosedWait, ...] = ()


class Operations:
    """Changes and reads the synchronizer's state; every method may raise Unavailable."""

    def __init__(self, database: SynchronizerDatabase, member_quota: TenantQuota) -> None:
        self._database = database
        self._member_quota = member_quota
        self._next_cleanup_at = time.monotonic()

    async def create_experiment(
        self,
        tenant: str,
        label: str,
        plan: tuple[PlannedStage, ...],
        plan_json: str,
        *,
        keeps_running: bool = False,
    ) -> CreateResult:
        """Starts an experiment, or resumes the one with that label.

        With `keeps_running`, one that runs by the same plan is left as it is. A finished one goes
        on if the plan gives its last stage more steps.

        Raises: PreconditionFailed when the known one has other stages, or when another
        experiment writes to the same directory.
        """
        new = Experiment.started(tenant, label, plan)
        directory = directory_of(plan_json)
        async with self._database.transaction() as connection:
            if directory:
                owner = await experiments.owner_of(connection, directory, but=(tenant, label))
                check_owner(directory, tenant, owner)
            if await experiments.insert(connection, new, plan_json, directory):
                return CreateResult(experiment=new, resumed=False)
            known = await experiments.locked_by_label(connection, tenant, label)
            begun = await experiments.plan_of(connection, known.id)
            plan_json = keep_threads(begun, plan_json)
            if keeps_running and _runs_by(known, begun, plan_json):
                return CreateResult(experiment=known, resumed=True)
            resumed = known.resumed(plan, longer_stages(begun, plan_json))
            if await experiments.save(connection, known, resumed):
                await experiments.replace_plan(connection, known.id, plan_json, directory)
            return CreateResult(experiment=resumed, resumed=True)

    async def get_experiment(self, experiment_id: uuid.UUID) -> ExperimentWithPlan:
        """Returns an experiment with its plan.

        Raises: NotFound.
        """
        async with self._database.snapshot() as connection:
            experiment = await experiments.get(connection, experiment_id)
            plan_json = await experiments.plan_of(connection, experiment_id)
            return ExperimentWithPlan(experiment=experiment, plan_json=plan_json)

    async def running_experiments(self, tenant: str) -> tuple[Experiment, ...]:
        """Returns the running experiments, oldest first; an empty tenant means all tenants."""
        async with self._database.snapshot() as connection:
            return await experiments.running(connection, tenant)

    async def experiment_update(self, experiment_id: uuid.UUID) -> ExperimentUpdate:
        """Returns an experiment with the versions of its running stage.

        Raises: NotFound.
        """
        async with self._database.snapshot() as connection:
            experiment = await experiments.get(connection, experiment_id)
            stage = experiment.running_stage
            if stage is None:
                return ExperimentUpdate(experiment=experiment, versions=())
            available = await versions.available(connection, experiment_id, stage.name)
            lost = await versions.lost(connection, experiment_id, stage.name)
            return ExperimentUpdate(experiment=experiment, versions=available, lost=lost)

    async def publish_version(
        self, experiment_id: uuid.UUID, version: PublishedVersion
    ) -> tuple[int, ...]:
        """Publishes weights; returns the versions of their stage that live members use.

        Raises: NotFound, PreconditionFailed, Superseded.
        """
        async with self._database.transaction() as connection:
            experiment = await experiments.locked(connection, experiment_id)
            experiment.stage(version.stage)
            if await versions.publish(connection, experiment, version):
                await notify(connection, experiment_id)
            pinned = await members.pinned_versions(connection, experiment_id, version.stage)
            if len(pinned) <= MAX_PINNED_LISTED:
                return pinned
            # Members may name versions that do not exist.
            known = await versions.numbers(connection, experiment_id, version.stage)
            return tuple(number for number in pinned if number in known)

    async def retire_versions(
        self, experiment_id: uuid.UUID, gone: tuple[VersionKey, ...], damage: str = ""
    ) -> None:
        """Records that the files of versions are gone; with `damage`, that they were lost.

        Raises: NotFound.
        """
        async with self._database.transaction() as connection:
            experiment = await experiments.locked(connection, experiment_id)
            if await versions.retire(connection, experiment, gone, damage):
                await notify(connection, experiment_id)

    async def report_damage(self, experiment_id: uuid.UUID, key: VersionKey, reason: str) -> bool:
        """Records that an explorer could not load a version; the first report of a copy stays.

        A trainer that had finished the stage has to look again. Returns True for a first report.
        Raises: NotFound.
        """
        async with self._database.transaction() as connection:
            known = await experiments.locked(connection, experiment_id)
            asked = known.with_damaged_version(key.stage)
            is_first = await versions.report_damage(connection, experiment_id, key, reason)
            if is_first and not await experiments.save(connection, known, asked):
                await notify(connection, experiment_id)
            return is_first

    async def record_turn(self, experiment_id: uuid.UUID, report: TurnReport) -> bool:
        """Records a role's report on the shared device; True if it changes the turn.

        Raises: NotFound.
        """
        async with self._database.transaction() as connection:
            known = await experiments.locked(connection, experiment_id)
            turn = (known.turn or DeviceTurn()).after(report, time.time())
            return await experiments.save_turn(connection, known, turn)

    async def finish_role(
        self,
        experiment_id: uuid.UUID,
        stage: str,
        role: Role,
        final_version: PublishedVersion | None,
    ) -> ExperimentStageState:
        """Records that a role has finished a stage; the last role starts the next stage.

        Raises: NotFound, PreconditionFailed, Superseded.
        """
        async with self._database.transaction() as connection:
            known = await experiments.locked(connection, experiment_id)
            changed = known.with_finished_role(stage, role, final_version)
            final = changed.stage(stage).final_version
            if final is not None and final != known.stage(stage).final_version:
                await versions.publish(connection, known, final)
            await experiments.save(connection, known, changed)
            return changed.stage(stage).state

    async def fail_stage(
        self, experiment_id: uuid.UUID, stage: str, reason: str, start_count: int | None
    ) -> None:
        """Fails an experiment; the first reason stays, and an outdated `start_count` is ignored.

        Raises: NotFound.
        """
        await self._change(experiment_id, lambda known: known.failed(stage, reason, start_count))

    async def cancel_experiment(self, experiment_id: uuid.UUID, reason: str) -> None:
        """Cancels an experiment at a user's request.

        Raises: NotFound.
        """
        await self._change(experiment_id, lambda known: known.cancelled(reason))

    async def record_heartbeat(
        self, member: Member, tenant: str = "", closed: Sequence[ClosedWait] = ()
    ) -> bool:
        """Records the heartbeat of a member, or its shutdown, with its waits that ended lately.

        False if the id belongs to a member of another role or, with a tenant, of another tenant.

        Raises: QuotaExceeded when it is new and its tenant has as many members as it may have.
        """
        async with self._database.autocommit() as connection:
            if member.phase is MemberPhase.GONE:
                is_own = await members.delete_member(connection, member, tenant)
                if is_own and closed:  # they are known by the member's id
                    await members.add_closed_waits(connection, closed, tenant)
                return True
            if time.monotonic() >= self._next_cleanup_at:
                self._next_cleanup_at = time.monotonic() + MEMBER_CLEANUP_SECONDS
                await members.delete_silent(connection)
            limit = self._member_quota.limit_of(tenant)
            outcome = await members.record_heartbeat(connection, member, tenant, limit)
            if outcome is members.HeartbeatOutcome.TOO_MANY and limit is not None:
                self._member_quota.check(tenant, used=limit, more=1)
            is_recorded = outcome is members.HeartbeatOutcome.RECORDED
            if is_recorded and closed:
                await members.add_closed_waits(connection, closed, tenant)
            return is_recorded

    async def tenant_of(self, experiment_id: str) -> str | None:
        """Returns the tenant of an experiment; None without an experiment of this id."""
        try:
            known = uuid.UUID(experiment_id)
        except ValueError:
            return None
        async with self._database.snapshot() as connection:
            return await experiments.tenant_of(connection, known)

    async def system_state(
        self,
        experiment_id: uuid.UUID | None,
        *,
        tenant: str = "",
        label: str = "",
        max_closed_waits: int = 0,
    ) -> SystemState:
        """Returns one experiment or the newest ones, of a tenant or of all, and their members.

        With a label, only experiments with that label. So many waits that ended come with them.

        Raises: NotFound.
        """
        async with self._database.snapshot() as connection:
            if experiment_id is None:
                listed = await experiments.newest(
                    connection, MAX_EXPERIMENTS_LISTED, tenant=tenant, label=label
                )
            else:
                listed = (await experiments.get(connection, experiment_id),)
            heard = await members.recently_heard(connection, experiment_id, tenant)
            closed: tuple[ClosedWait, ...] = ()
            if max_closed_waits:
                closed = await members.newest_closed_waits(
                    connection, experiment_id, tenant, max_closed_waits
                )
            return SystemState(experiments=listed, members=heard, closed_waits=closed)

    async def _change(
        self, experiment_id: uuid.UUID, rule: Callable[[Experiment], Experiment]
    ) -> None:
        async with self._database.transaction() as connection:
            known = await experiments.locked(connection, experiment_id)
            await experiments.save(connection, known, rule(known))


def _runs_by(known: Experiment, begun: str, plan_json: str) -> bool:
    """Returns True if it runs by this plan; requires its lock, against concurrent resumes."""
    if known.state is not ExperimentState.RUNNING:
        return False
    return is_same_plan(plan_json, begun)
