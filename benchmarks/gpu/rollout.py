"""The explorer's part: responses of the real engine, and weights on their way in."""

import asyncio
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.gpu.sizes import Size
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.types import WeightsId, WeightsVersion
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.types import SamplingParams


async def measure_rollout(
    model: Path, published: WeightsVersion, size: Size, steps: int
) -> dict[str, float]:
    """Seconds of a full batch of responses, and of a load of published weights."""
    options = EngineOptions(
        model_path=str(model),
        max_model_len=size.max_length + 1,
        end_token_ids=(),
        rollout=RolloutModelConfig(
            dtype=size.dtype,
            ignore_eos=True,
            enable_prefix_caching=False,
            gpu_memory_utilization=0.8,
        ),
    )
    engine = await start_vllm(options)
    try:
        await _seconds(engine, size, 0)  # compiles and captures
        seconds = [await _seconds(engine, size, step) for step in range(1, steps + 1)]
        begun = time.perf_counter()
        await WeightLoader(engine).load_published(published)
        loaded = time.perf_counter() - begun
        begun = time.perf_counter()
        await engine.load_weights(published.path)
        return {
            "rollout_seconds": statistics.median(seconds),
            "rollout_tokens": float(size.concurrent * size.response),
            "check_and_load_seconds": loaded,
            "load_seconds": time.perf_counter() - begun,
        }
    finally:
        await engine.close()


def published_at(path: str, manifest_sha256: str, weights_blake3: str) -> WeightsVersion:
    """Returns the weights version that the trainer's part has left."""
    return WeightsVersion(
        id=WeightsId(version=1, incarnation=1),
        path=Path(path),
        manifest_sha256=bytes.fromhex(manifest_sha256),
        weights_blake3=bytes.fromhex(weights_blake3),
    )


async def _seconds(engine: Engine, size: Size, step: int) -> float:
    """Measures as many responses at once as the load has."""
    random = np.random.default_rng(step)
    prompts = random.integers(2, size.vocabulary, (size.concurrent, size.prompt)).tolist()
    begun = time.perf_counter()
    made = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(seed=number, max_tokens=size.response))
            for number, prompt in enumerate(prompts)
        )
    )
    seconds = time.perf_counter() - begun
    assert {len(response.token_ids) for response in made} == {size.response}
    return seconds
