"""vLLM's engine before its first request."""

from types import SimpleNamespace

import pytest

from services.explorer.engine.interface import EngineOptions
from services.explorer.engine.vllm import VllmEngine
from trinity.config.schema.explorer import RolloutModelConfig


class IdleCore:
    """The part of vLLM's front end that pauses; it has read nothing yet, as no request was made."""

    output_handler = None

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.output_processor = SimpleNamespace(request_states={})

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append(f"pause {mode} {clear_cache}")

    async def resume_generation(self) -> None:
        self.calls.append("resume")


@pytest.mark.timeout(30)
async def test_weights_may_come_before_the_first_request() -> None:
    core = IdleCore()
    options = EngineOptions(
        model_path="model", max_model_len=8, end_token_ids=(), rollout=RolloutModelConfig()
    )
    engine = VllmEngine(core, options)
    await engine.pause_requests()
    await engine.resume_requests()
    assert core.calls == ["pause keep True", "resume"]
