"""The whole configuration, as the user wrote it."""

from typing import Annotated

from pydantic import Field

from trinity.config.algorithm import AlgorithmConfig
from trinity.config.buffer import BufferConfig
from trinity.config.cluster import ClusterConfig
from trinity.config.explorer import ExplorerConfig
from trinity.config.log import LogConfig
from trinity.config.mode import Mode
from trinity.config.model import ModelConfig
from trinity.config.monitor import MonitorConfig
from trinity.config.section import OptionalSegment, PathSegment, Section
from trinity.config.stages import StageConfig
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
    """Whose experiment it is."""
    mode: Mode = "both"
    """`both`: explorer and trainer; `train`: the trainer alone, on a file."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """All randomness of the experiment derives from it."""
    checkpoint_root_dir: Annotated[str, Field(min_length=1)] = "./checkpoints"
    """Where runs keep everything they leave."""
    continue_from_checkpoint: bool = True
    """Go on in a directory that exists; else begin anew beside it, under a name with the time."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    model: ModelConfig = ModelConfig()
    cluster: ClusterConfig = ClusterConfig()
    buffer: BufferConfig = BufferConfig()
    explorer: ExplorerConfig = ExplorerConfig()
    trainer: TrainerConfig = TrainerConfig()
    synchronizer: SynchronizerConfig = SynchronizerConfig()
    monitor: MonitorConfig = MonitorConfig()
    log: LogConfig = LogConfig()
    stages: tuple[StageConfig, ...] = ()
    """Stages in order, each starting from the weights of the last; none is one called `main`."""
