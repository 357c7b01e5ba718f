"""The rules of an experiment's life, whatever the order of events."""

from hypothesis import given
from hypothesis import strategies as st

from services.synchronizer.domain import (
    Experiment,
    ExperimentStageState,
    ExperimentState,
    PlannedStage,
    PublishedVersion,
    Role,
    VersionKind,
)
from trinity.errors import RpcError

PLAN = (
    PlannedStage(name="a", roles=(Role.TRAINER,)),
    PlannedStage(name="b", roles=(Role.TRAINER, Role.EXPLORER)),
    PlannedStage(name="c", roles=(Role.EXPLORER,)),
)


def final(stage: str) -> PublishedVersion:
    return PublishedVersion(
        stage=stage,
        version=1,
        incarnation=1,
        kind=VersionKind.FULL,
        base_version=0,
        path="/weights",
        manifest_sha256=b"m" * 32,
        weights_sha256=b"w" * 32,
        parent_version=0,
    )


def happen(experiment: Experiment, event: str, stage: str) -> Experiment:
    """Let something happen; what is refused changes nothing."""
    try:
        match event:
            case "trainer":
                return experiment.with_finished_role(stage, Role.TRAINER, final(stage))
            case "explorer":
                return experiment.with_finished_role(stage, Role.EXPLORER, None)
            case "fail":
                return experiment.failed(stage, "why")
            case "cancel":
                return experiment.cancelled("enough")
            case _:
                return experiment.resumed(PLAN)
    except RpcError:
        return experiment


EVENTS = st.tuples(
    st.sampled_from(["trainer", "explorer", "fail", "cancel", "resume"]), st.sampled_from("abc")
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happens_stages_end_in_order_and_one_runs_while_the_experiment_does(
    events: list[tuple[str, str]],
) -> None:
    experiment = Experiment.started("tenant", "label", PLAN)
    for event, stage in events:
        before, experiment = experiment, happen(experiment, event, stage)
        states = [stage.state for stage in experiment.stages]
        done = states.count(ExperimentStageState.FINISHED)
        assert states[:done] == [ExperimentStageState.FINISHED] * done
        assert done >= sum(s.state is ExperimentStageState.FINISHED for s in before.stages)
        is_running = experiment.state is ExperimentState.RUNNING
        assert states.count(ExperimentStageState.RUNNING) == is_running
        assert (experiment.state is ExperimentState.FINISHED) == (done == len(PLAN))
        assert bool(experiment.reason) == (
            experiment.state in (ExperimentState.FAILED, ExperimentState.CANCELLED)
        )
        for stage_ in experiment.stages[:done]:
            assert set(stage_.roles) <= set(stage_.finished_roles)
            assert (stage_.final_version is not None) == (Role.TRAINER in stage_.roles)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happened_an_experiment_can_still_be_finished(
    events: list[tuple[str, str]],
) -> None:
    experiment = Experiment.started("tenant", "label", PLAN)
    for event, stage in events:
        experiment = happen(experiment, event, stage)
    experiment = experiment.resumed(PLAN)
    for stage in "abc":
        for role in ("trainer", "explorer"):
            experiment = happen(experiment, role, stage)
    assert experiment.state is ExperimentState.FINISHED


def test_a_straggler_of_an_earlier_start_fails_nothing() -> None:
    resumed = Experiment.started("t", "l", PLAN).cancelled("enough").resumed(PLAN)
    assert resumed.failed("a", "too late", start_count=1) == resumed
    assert resumed.failed("a", "why", start_count=2).state is ExperimentState.FAILED
