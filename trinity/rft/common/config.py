"""Parts of the configuration that workflows read, as Trinity-RFT has them.

Sections are those of a file here, for annotations: no part of a user is given one.
"""

import importlib
from collections.abc import Mapping

from trinity.config.schema.data import FormatConfig
from trinity.rft.import_hook import resolve
from trinity.workflows.model_access import InferenceModelConfig
from trinity.workflows.task import GenerationConfig

__all__ = ["FormatConfig", "GenerationConfig", "InferenceModelConfig"]

_SECTIONS: Mapping[str, str] = {
    "AlgorithmConfig": "algorithm",
    "BufferConfig": "buffer",
    "ClusterConfig": "experiment",
    "Config": "experiment",
    "DataJuicerServiceConfig": "experiment",
    "DataSelectorConfig": "data",
    "ExperiencePipelineConfig": "buffer",
    "ExplorerConfig": "explorer",
    "ModelConfig": "model",
    "MonitorConfig": "experiment",
    "OperatorConfig": "buffer",
    "SynchronizerConfig": "experiment",
    "TasksetConfig": "data",
    "TrainerConfig": "trainer",
}
"""Names that are the same here, and the files of the schema that have them."""


def __getattr__(name: str) -> object:
    if (file := _SECTIONS.get(name)) is not None:
        return vars(importlib.import_module(f"trinity.config.schema.{file}"))[name]
    return resolve(__name__, name)
