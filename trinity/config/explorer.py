"""Section `explorer`: rollout engines, workflow runners and when to evaluate."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.rollout_model import AuxiliaryModelConfig, RolloutModelConfig
from trinity.config.section import NonNegative, PathSegment, Port, Positive, Section, usual
from trinity.config.status import NoEffect

ONE_BY_ONE = NoEffect("runs are asynchronous, each a unit of its own with its own retries")


class OverRolloutConfig(Section):
    """Steps that do not wait for their slowest tasks."""

    ratio: float = Field(default=0.0, ge=0, lt=1)
    """Part of a step's tasks that may be left behind when the others have ended; 0 is off. Which
    ones is a matter of time, so the same seed need not give the same run."""
    wait_after_min: float = Field(default=30.0, ge=0)
    """Seconds that the last tasks get after enough of the others ended."""
    return_partial_tasks: bool = False
    """Train on the runs that had ended of tasks that are left behind."""


class DynamicTimeoutConfig(Section):
    """A time limit that follows how long runs take."""

    enable: bool = False
    """Lower the limit once runs were timed."""
    warmup_min_steps: Positive = 1
    """Explore steps that are timed before."""
    ratio: float = Field(default=3.0, gt=0)
    """The limit over the mean of what training runs took; never above `max_timeout`."""


class ExplorerConfig(Section):
    """Rollout and evaluation."""

    name: Annotated[
        PathSegment, NoEffect("explorers come and go, and are told apart by their ids")
    ] = "explorer"
    """Its name in logs and metrics."""
    runner_per_model: Positive = 8
    """Runners of one engine, for 64 runs at a time each (`TRINITY_EXPLORER_RUNS_PER_RUNNER`)."""
    max_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for one attempt at a run."""
    max_retry_times: NonNegative = 2
    """Further attempts at a run that failed."""
    rollout_model: RolloutModelConfig = usual(RolloutModelConfig)
    """The engine."""
    eval_interval: Positive = 100
    """Explore steps between evaluations, a multiple of `synchronizer.sync_interval`."""
    eval_on_startup: bool = True
    """Evaluate the weights that the stage starts with."""
    auxiliary_models: tuple[AuxiliaryModelConfig, ...] = ()
    """Models beside it, whose weights stay as they are: judges, teachers, reward models."""
    over_rollout: OverRolloutConfig = usual(OverRolloutConfig)
    """Steps that do not wait for their slowest tasks."""
    dynamic_timeout: DynamicTimeoutConfig = usual(DynamicTimeoutConfig)
    """A time limit that follows how long runs take."""
    env_vars: dict[str, str | bool | int | float] = Field(default_factory=dict)
    """Environment variables that workflows and rewards see, beside the explorer's own."""
    concurrent_mode: Annotated[
        Literal["sequential", "asynchronous", "multi-threading"], ONE_BY_ONE
    ] = "sequential"
    """How the runs of one task share a runner."""
    max_repeat_times_per_runner: Annotated[Positive | None, ONE_BY_ONE] = None
    """Runs of one task that share a runner."""
    runner_num: Annotated[int | None, NoEffect("`runner_per_model` has its place")] = None
    """Workflow runners, in old releases."""
    runner_prepare_concurrency: Annotated[Positive, ONE_BY_ONE] = 8
    """Runners that start at a time."""
    runner_prepare_max_retries: Annotated[NonNegative, ONE_BY_ONE] = 2
    """Further attempts at starting a runner."""
    runner_state_report_interval: Annotated[
        NonNegative, NoEffect("`trinity status` shows what runs, at any time")
    ] = 0
    """Seconds between two tables of runners in the log; 0 is off."""
    max_inflight_batches: Annotated[
        Positive, NoEffect("it belongs to `sync_style: fully_async`, which is planned")
    ] = 2
    """Batches on their way at a time."""
    collect_experiences: Annotated[bool, NoEffect("experiences are always kept")] = False
    """Keep the experiences of an evaluation, in old releases."""
    bench_on_latest_checkpoint: bool = False
    """In `mode: bench`: evaluate the newest checkpoint alone."""
    proxy_port: Port = 8010
    """In `mode: serve`: port of the model's address."""
    listen_address: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """In `mode: serve`: network address that it is reached at. Others than this machine's own take
    certificates and tokens: `trinity run --secure`, or `TRINITY_SECURITY_DIR`."""
    service_status_check_interval: Positive = 60
    """In `mode: serve`: seconds between two looks for newer weights of the run."""
    min_running_model_num: Positive = 1
    """In `mode: serve`: engines that go on answering while others load newer weights; with a single
    engine, requests wait."""
    db_url: Annotated[str | None, NoEffect("a served model keeps nothing of what it is asked")] = (
        None
    )
    """In `mode: serve`: database that keeps the requests."""
