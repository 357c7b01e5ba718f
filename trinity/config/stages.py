"""Section `stages`: differences of each stage from the global configuration."""

from typing import Annotated

from pydantic import StringConstraints

from trinity.config.algorithm import AlgorithmConfig
from trinity.config.buffer import BufferConfig
from trinity.config.cluster import ClusterConfig
from trinity.config.data_processor import DataProcessorConfig
from trinity.config.explorer import ExplorerConfig
from trinity.config.mode import MODES, Mode
from trinity.config.model import ModelConfig
from trinity.config.monitor import MonitorConfig
from trinity.config.section import Section, usual
from trinity.config.synchronizer import SynchronizerConfig
from trinity.config.trainer import TrainerConfig

StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]


class StageConfig(Section):
    """Keys that a stage gives replace the global ones, lists as a whole; all other keys stay.

    The keys it gives are those pydantic saw when it was built (`model_fields_set`), so a stage must
    not be rebuilt from a dump that includes defaults.
    """

    stage_name: StageName
    """Unique in the experiment."""
    mode: Annotated[Mode | None, MODES] = None
    """Which services work in this stage."""
    algorithm: AlgorithmConfig = usual(AlgorithmConfig)
    model: ModelConfig = usual(ModelConfig)
    cluster: ClusterConfig = usual(ClusterConfig)
    buffer: BufferConfig = usual(BufferConfig)
    explorer: ExplorerConfig = usual(ExplorerConfig)
    trainer: TrainerConfig = usual(TrainerConfig)
    synchronizer: SynchronizerConfig = usual(SynchronizerConfig)
    monitor: MonitorConfig = usual(MonitorConfig)
    data_processor: DataProcessorConfig = usual(DataProcessorConfig)
