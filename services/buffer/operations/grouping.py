"""Commits the results computed for groups, and updates the beliefs of selectors by them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from services.buffer.domain.stage import ExperienceState, ScopeState, Stage
from services.buffer.domain.tasks import sanitize_text
from services.buffer.store.assignments import first_explore_step
from services.buffer.store.database import SCOPES_TOPIC, batch_topic, notify, work_topic
from services.buffer.store.experiences import filter_raw, insert_derived, set_states
from services.buffer.store.pipeline import Claim, GroupResult, end_claims, finish_claims
from services.buffer.store.reports import log_notice
from services.buffer.store.stages import lock_stage
from trinity.algorithm.units import UNIT_ARGUMENT
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.sql import Connection
from trinity.types import StageKey

MAX_ATTEMPTS = 3


async def commit_group_results(connection: Connection, results: Sequence[GroupResult]) -> None:
    """Stores the groups of one stage whose claims still hold.

    The stage is locked last, in shared mode with results and other groups: no other transaction
    changes these rows, or sees them before the commit.
    """
    if not results:
        return
    key = results[0].claim.key
    await _commit_outcomes(connection, key, [group for group in results if not group.outcome.error])
    stage = await lock_stage(connection, key, is_shared=True)
    await _commit_errors(connection, stage, [group for group in results if group.outcome.error])
    topics = [batch_topic(stage.key)]
    is_short = any(len(group.outcome.rows) < stage.repeat_times for group in results)
    if is_short or stage.plan.has_dynamic_sync or not stage.plan.needs_training:
        # Missing rows free credit for the next explore step, or it waits for the last run to end.
        topics.append(work_topic(stage.key))
    await notify(connection, *topics)


async def _commit_outcomes(
    connection: Connection, key: StageKey, results: Sequence[GroupResult]
) -> None:
    metrics = {group.claim: group.outcome.metrics for group in results}
    held = await finish_claims(connection, metrics)
    own = [group for group in results if group.claim.assignment_id in held]
    left_out: dict[str, list[str]] = defaultdict(list)
    for group in own:
        for sample in group.outcome.left_out:
            left_out[sample.reason].append(sample.experience_id)
    for reason, ids in left_out.items():
        await set_states(connection, key, ids, ExperienceState.FILTERED, sanitize_text(reason))
    derived = [(group.operator, row) for group in own for row in group.outcome.rows]
    await insert_derived(connection, key, derived)


async def _commit_errors(
    connection: Connection, stage: Stage, results: Sequence[GroupResult]
) -> None:
    """Reopens the scopes for a retry, or leaves out the groups that have used all attempts."""
    claims_by_error: dict[tuple[ScopeState, str, str], list[Claim]] = defaultdict(list)
    for group in results:
        state = ScopeState.DEAD if group.claim.attempts >= MAX_ATTEMPTS else ScopeState.OPEN
        claims_by_error[state, group.outcome.function, group.outcome.error].append(group.claim)
    for (state, function, error), claims in claims_by_error.items():
        held = await end_claims(connection, claims, state, error)
        if held and state is ScopeState.DEAD:
            own = function or f"advantage function {stage.plan.algorithm.advantage_fn}"
            await _filter_groups(connection, stage, sorted(held), own, error)
        elif held:
            await notify(connection, SCOPES_TOPIC)


async def _filter_groups(
    connection: Connection, stage: Stage, ids: Sequence[str], function: str, error: str
) -> None:
    await filter_raw(connection, stage.key, ids, f"the pipeline failed: {function}: {error}")
    step = await first_explore_step(connection, stage.key, ids)
    text = (
        f"explore step {step}: the samples of {len(ids)} tasks are left out, "
        f"{function} cannot be used on them: {error}"
    )
    await log_notice(connection, stage.key, text)


def split_runs_text(stage: Stage, results: Sequence[GroupResult]) -> str:
    """Returns advice where runs gave several samples, and baselines or batches count samples."""
    num_samples = sum(group.outcome.num_samples for group in results)
    num_runs = sum(group.outcome.num_runs for group in results)
    advice = "; ".join(_about_samples(stage.plan))
    if num_samples <= num_runs or not advice:
        return ""
    return f"{num_runs} runs gave {num_samples} samples, and {advice}"


def _about_samples(plan: StagePlan) -> Iterator[str]:
    algorithm = plan.algorithm
    if algorithm.advantage_fn_args.get(UNIT_ARGUMENT) == "sample":
        yield (
            f"`{algorithm.advantage_fn}` compares samples, so a run weighs as often as it was "
            "split: `algorithm.advantage_fn_args.unit: run` counts each run once"
        )
    if plan.needs_training and plan.replay is None and not plan.trains_explore_steps:
        yield (
            f"batches of `buffer.train_batch_size: {plan.train_batch_size}` rows take them in "
            "order across explore steps, and leave those that are over at the end: in a new run, "
            "`buffer.train_step: explore_step` trains each explore step in one train step"
        )


async def release_untried_claims(connection: Connection, claims: Sequence[Claim]) -> None:
    """Releases claims on groups that were not tried, without counting an attempt."""
    if claims:
        await end_claims(connection, claims, ScopeState.OPEN, is_counted=False)
        await notify(connection, SCOPES_TOPIC)
