"""The whole configuration, as the user wrote it."""

from typing import Annotated

from pydantic import Field

from trinity.config.algorithm import AlgorithmConfig
from trinity.config.buffer import BufferConfig
from trinity.config.cluster import ClusterConfig
from trinity.config.data_processor import DataProcessorConfig
from trinity.config.explorer import ExplorerConfig
from trinity.config.log import LogConfig
from trinity.config.mode import MODES, Mode
from trinity.config.model import ModelConfig
from trinity.config.monitor import MonitorConfig
from trinity.config.reasons import DERIVED, NO_RAY
from trinity.config.section import OptionalSegment, PathSegment, Section, usual
from trinity.config.service import ServiceConfig
from trinity.config.stages import StageConfig
from trinity.config.status import NoEffect
from trinity.config.synchronizer import SynchronizerConfig
from trinity.config.trainer import TrainerConfig


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
    mode: Annotated[Mode, MODES] = "both"
    """`both`: explorer and trainer; `train`: the trainer alone, on a file or on what an earlier
    stage of `explore` has stored; `explore`: explorers alone, whose experiences are kept; `bench`:
    evaluation of the checkpoints of the run in this directory on `eval_tasksets`; `serve`: its
    newest weights, or the model, behind an OpenAI-compatible address."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """All randomness of the experiment derives from it."""
    checkpoint_root_dir: Annotated[str, Field(min_length=1)] = "./checkpoints"
    """Directory in which runs keep everything they leave."""
    continue_from_checkpoint: bool = True
    """Go on in an existing directory; else begin a new one beside it, with the time in its name."""
    algorithm: AlgorithmConfig = usual(AlgorithmConfig)
    """The algorithm, its parts and the optimizer."""
    model: ModelConfig = usual(ModelConfig)
    """The model that is trained, its lengths and its sampling."""
    cluster: ClusterConfig = usual(ClusterConfig)
    """Machines and their GPUs."""
    buffer: BufferConfig = usual(BufferConfig)
    """Sizes, ends and data."""
    explorer: ExplorerConfig = usual(ExplorerConfig)
    """Rollout and evaluation."""
    trainer: TrainerConfig = usual(TrainerConfig)
    """How the policy is trained."""
    synchronizer: SynchronizerConfig = usual(SynchronizerConfig)
    """Transfer of weights from trainer to explorer."""
    monitor: MonitorConfig = usual(MonitorConfig)
    """Where metrics go."""
    log: LogConfig = usual(LogConfig)
    """How much the services log."""
    data_processor: DataProcessorConfig = usual(DataProcessorConfig)
    """What happens to tasks before, and to experiences after, the rollout."""
    service: ServiceConfig = usual(ServiceConfig)
    """External services that the run uses."""
    checkpoint_job_dir: Annotated[str, DERIVED] = ""
    """The run's directory."""
    ray_namespace: Annotated[str, NO_RAY] = ""
    """Ray's name for the run."""
    ignore_validator_suggestions: Annotated[
        bool, NoEffect("an estimate of memory never refuses a run")
    ] = False
    """Do not look whether a GPU's memory suffices."""
    stages: tuple[StageConfig, ...] = ()
    """Stages in order, each starting from the weights of the last; none is one called `main`."""
