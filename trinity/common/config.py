"""Parts of the configuration that workflows read, as Trinity-RFT has them."""

from trinity.compat import resolve
from trinity.workflows.trinity_rft.model import ModelConfig as InferenceModelConfig
from trinity.workflows.trinity_rft.task import FormatConfig, GenerationConfig

__all__ = ["FormatConfig", "GenerationConfig", "InferenceModelConfig"]


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
