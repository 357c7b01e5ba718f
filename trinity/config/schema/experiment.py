"""The top level of a file with its stages, and sections `cluster`, `monitor`, `log` and others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_serializer

from trinity.config.schema.algorithm import AlgorithmConfig
from trinity.config.schema.base import (
    MAX_NAME,
    Args,
    NonNegative,
    OptionalSegment,
    PathSegment,
    Positive,
    Section,
    ValueAliases,
    default_section,
    is_secret,
)
from trinity.config.schema.buffer import BufferConfig, DataProcessorConfig
from trinity.config.schema.choices import Mode
from trinity.config.schema.explorer import ExplorerConfig
from trinity.config.schema.model import ModelConfig
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError

StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=MAX_NAME)]
SINGLE_STAGE = "main"
"""Name of the only stage of an experiment that lists none."""


class ClusterConfig(Section):
    """Machines and their GPUs."""

    node_num: Positive = 1
    """Machines. Engines of an explorer are on one, ranks on one or on whole ones; several take
    `trinity deploy`."""
    gpu_per_node: NonNegative = 0
    """GPUs of each; 0 runs on the processor."""


class MonitorConfig(Section):
    """Destination of the metrics."""

    monitor_type: Annotated[
        Literal["tensorboard", "wandb", "mlflow", "none"],
        ValueAliases(planned={"swanlab": "SwanLab"}),
    ] = "tensorboard"
    """Where they go; `tensorboard`: files under `monitor/` in the run's directory."""
    monitor_args: Args = Field(default_factory=dict)
    """Of `wandb`: `base_url`, `api_key`; of `mlflow`: `uri`, `username`, `password`. Better in the
    variables that W&B and MLflow have for them."""
    detailed_stats: bool = False
    """Give of an evaluation's tasks the largest, the smallest and the deviation, too."""

    @field_serializer("monitor_args", when_used="json")
    def _without_secrets(self, arguments: Args) -> Args:
        """Leaves secrets out of JSON; only the process that read the file needs them."""
        return {name: value for name, value in arguments.items() if not is_secret(name)}


class SynchronizerConfig(Section):
    """Transfer of weights from trainer to explorer."""

    sync_method: Annotated[
        Literal["checkpoint", "nccl"],
        ValueAliases(
            planned={
                "memory": "weights through shared memory; through files meanwhile",
            },
            aliases={"offline": "checkpoint", "online": "nccl"},
        ),
    ] = "checkpoint"
    """How weights are transferred; `checkpoint`: as files, whose hashes the explorer verifies.
    `nccl`: they are written all the same, but engines take them from the trainer's memory, by gloo
    where there are no GPUs; what does not come whole and in time is taken from the files."""
    sync_style: Annotated[
        Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"],
        ValueAliases(
            aliases={
                "dynamic_by_explorer": "explorer_driven",
                "dynamic_by_trainer": "trainer_driven",
            },
        ),
    ] = "fixed"
    """What triggers a transfer. `fixed`: each explore step has its version, by the two keys below.
    `trainer_driven`: an explore step takes the newest version there is and waits for none.
    `explorer_driven`: after `sync_interval` explore steps a newer one is asked for and waited for,
    and only then written. `fully_async`: as `trainer_driven`, with `weight_update: keep` and
    `explorer.max_inflight_batches` explore steps on their way."""
    sync_interval: Positive = 1
    """Train steps between two versions; with `explorer_driven` explore steps."""
    sync_offset: NonNegative = 0
    """Explore steps the explorer may be ahead of the trainer; 0 with interval 1 is on-policy."""
    weight_update: Literal["drain", "keep"] = "drain"
    """How engines take a version. `drain`: once their runs are over, so that each run has one.
    `keep`: at once; requests pause and continue with it, and each token knows its version. It takes
    `sync_offset` from 1 on or a dynamic `sync_style`."""
    sync_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that either side waits for the other."""
    group_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "rollout_weight_sync"
    """How the names of the groups begin that `sync_method: nccl` sends weights in."""


class StageConfig(Section):
    """Keys that a stage gives replace the global ones, lists as a whole; all other keys stay.

    The keys it gives are those pydantic saw when it was built (`model_fields_set`), so a stage must
    not be rebuilt from a dump that includes defaults.
    """

    stage_name: StageName
    """Unique in the experiment."""
    mode: Mode | None = None
    """Which services work in this stage."""
    algorithm: AlgorithmConfig = default_section(AlgorithmConfig)
    model: ModelConfig = default_section(ModelConfig)
    cluster: ClusterConfig = default_section(ClusterConfig)
    buffer: BufferConfig = default_section(BufferConfig)
    explorer: ExplorerConfig = default_section(ExplorerConfig)
    trainer: TrainerConfig = default_section(TrainerConfig)
    synchronizer: SynchronizerConfig = default_section(SynchronizerConfig)
    monitor: MonitorConfig = default_section(MonitorConfig)
    data_processor: DataProcessorConfig = default_section(DataProcessorConfig)


class DataJuicerServiceConfig(Section):
    """The Data-Juicer server."""

    server_url: str | None = None
    """Address of a running server, for the experience operator `data_juicer`."""
    auto_start: bool = False
    """Let `trinity run` start one on this machine where no `server_url` is given. It runs in an
    environment of its own, which is made once, below `~/.cache/trinity` (`TRINITY_CACHE`)."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the one that is started; 8005 if it is left out."""

    @property
    def started_port(self) -> int | None:
        """The port of the server that `trinity run` starts, if it starts a server."""
        return (self.port or 8005) if self.auto_start and not self.server_url else None

    @property
    def address(self) -> str | None:
        """Address of the server, a running one or one that is started."""
        started = self.started_port
        return self.server_url if started is None else f"http://127.0.0.1:{started}"


class ServiceConfig(Section):
    """External services."""

    data_juicer: DataJuicerServiceConfig | None = None
    """The Data-Juicer server."""


class LogConfig(Section):
    """Logging of the services."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is written."""
    group_by_node: bool = False
    """Keep the logs of a run in a folder named by the address of its machine, `log/<address>`."""


class Config(Section):
    """One experiment, or one stage of it after merging (then `stages` is empty)."""

    project: PathSegment = "trinity"
    """First part of the run's directory under `checkpoint_root_dir`."""
    group: OptionalSegment = ""
    """Optional second part."""
    name: PathSegment = "rft"
    """Last part."""
    tenant: PathSegment = "default"
    """Owner of the experiment."""
    mode: Mode = "both"
    """`both`: explorer and trainer; `colocate`: the same on one GPU, which they use by turns;
    `train`: the trainer alone, on a file or on what an earlier stage of `explore` has stored;
    `explore`: explorers alone, whose experiences are kept; `bench`: evaluation of the checkpoints
    of the run in this directory on `eval_tasksets`, or of the model where there is no run; `serve`:
    its newest weights, or the model, behind an OpenAI-compatible address."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """All randomness of the experiment derives from it."""
    checkpoint_root_dir: Annotated[str, Field(min_length=1)] = "./checkpoints"
    """Directory in which runs keep everything they leave."""
    continue_from_checkpoint: bool = True
    """Go on in an existing directory; else begin a new one beside it, with the time in its name."""
    algorithm: AlgorithmConfig = default_section(AlgorithmConfig)
    """The algorithm, its parts and the optimizer."""
    model: ModelConfig = default_section(ModelConfig)
    """The model that is trained, its lengths and its sampling."""
    cluster: ClusterConfig = default_section(ClusterConfig)
    """Machines and their GPUs."""
    buffer: BufferConfig = default_section(BufferConfig)
    """Sizes, ends and data."""
    explorer: ExplorerConfig = default_section(ExplorerConfig)
    """Rollout and evaluation."""
    trainer: TrainerConfig = default_section(TrainerConfig)
    """How the policy is trained."""
    synchronizer: SynchronizerConfig = default_section(SynchronizerConfig)
    """Transfer of weights from trainer to explorer."""
    monitor: MonitorConfig = default_section(MonitorConfig)
    """Where metrics go."""
    log: LogConfig = default_section(LogConfig)
    """How much the services log."""
    data_processor: DataProcessorConfig = default_section(DataProcessorConfig)
    """What happens to tasks before, and to experiences after, the rollout."""
    service: ServiceConfig = default_section(ServiceConfig)
    """External services that the run uses."""
    stages: tuple[StageConfig, ...] = ()
    """Stages in order, each starting from the weights of the last; none is one called `main`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedStage:
    """One stage with its merged configuration."""

    index: int
    name: str
    config: Config


def check_stage_names(config: Config) -> None:
    """Raises UserError with a line for each stage that has the name of an earlier one."""
    names = [stage.stage_name for stage in config.stages]
    errors = [
        f"two of `stages` are called `{name}` (`stages[{index}].stage_name`): give each its own"
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    if errors:
        raise UserError("\n".join(errors))


def stages_of(config: Config) -> tuple[MergedStage, ...]:
    """The experiment's stages in order, at least one; see `check_stage_names`."""
    if not config.stages:
        return (MergedStage(index=0, name=SINGLE_STAGE, config=config),)
    written = config.model_dump(exclude_unset=True)
    above = written.pop("stages")
    return tuple(
        MergedStage(
            index=index,
            name=stage.pop("stage_name"),
            config=Config.model_validate(deep_merge(written, stage)),
        )
        for index, stage in enumerate(above)
    )


def deep_merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """`below` with the keys of `above` in it; other values than mappings are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = deep_merge(old, value)
        merged[key] = value
    return merged
