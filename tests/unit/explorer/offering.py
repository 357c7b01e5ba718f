"""A model that is called over HTTP, as workflows that bring an OpenAI client have it."""

from dataclasses import dataclass, field

import openai

from tests.unit.explorer.builders import ArithmeticEngine
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.workflows.model import ModelWrapper

QUESTION = [{"role": "user", "content": "a"}]
ROLLOUT = RolloutModelConfig(enable_openai_api=True, enable_history=True, api_key="secret")


@dataclass
class Offered:
    """A model with an address."""

    model: ModelWrapper
    engine: ArithmeticEngine = field(default_factory=ArithmeticEngine)

    @property
    def client(self) -> openai.AsyncOpenAI:
        return self.model.get_openai_async_client()
