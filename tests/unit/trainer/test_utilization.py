"""A step's share of the devices' peak, where both model and device are known."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PretrainedConfig, Qwen2Config, Qwen2ForCausalLM
from verl.utils import flops_counter

from services.trainer.learner.utilization import Utilization
from tests.support.vision_models import KINDS, config_of

LENGTHS = [96, 160]
TIMES = {"time/update_actor": 2.0, "time/old_log_prob": 0.5}
PEAK_TERA_FLOPS = 3.0


@pytest.fixture
def known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(flops_counter, "get_device_flops", lambda: PEAK_TERA_FLOPS)


def small() -> PretrainedConfig:
    return Qwen2Config(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=1000,
    )


def utilization(config: PretrainedConfig, num_ranks: int = 1, num_passes: int = 1) -> Utilization:
    return Utilization(config=config, num_ranks=num_ranks, num_passes=num_passes)


@pytest.mark.usefixtures("known_device")
def test_it_is_six_operations_a_weight_and_token_over_the_peak() -> None:
    weights = sum(one.numel() for one in Qwen2ForCausalLM(small()).parameters())
    shares = utilization(small()).mfu_metrics(LENGTHS, TIMES)
    operations = 6 * weights * sum(LENGTHS)
    expected = operations / TIMES["time/update_actor"] / (PEAK_TERA_FLOPS * 1e12)
    assert shares["perf/mfu/actor"] == pytest.approx(expected, rel=0.1)  # attention comes on top
    forward = operations / 3 / TIMES["time/old_log_prob"] / (PEAK_TERA_FLOPS * 1e12)
    assert shares["perf/mfu/actor_infer"] == pytest.approx(forward, rel=0.1)


@pytest.mark.usefixtures("known_device")
def test_it_grows_with_passes_and_falls_with_ranks() -> None:
    one = utilization(small()).mfu_metrics(LENGTHS, TIMES)["perf/mfu/actor"]
    shared = utilization(small(), num_ranks=4, num_passes=2).mfu_metrics(LENGTHS, TIMES)
    assert shared["perf/mfu/actor"] == pytest.approx(one / 2)


@pytest.mark.usefixtures("known_device")
def test_parts_that_were_not_timed_and_unknown_models_have_none() -> None:
    assert "perf/mfu/actor_infer" not in utilization(small()).mfu_metrics(
        LENGTHS, {"time/update_actor": 1.0}
    )
    assert utilization(PretrainedConfig()).mfu_metrics(LENGTHS, TIMES) == {}


@pytest.mark.usefixtures("known_device")
def test_an_unknown_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops_counter, "get_device_flops", lambda: math.inf)
    assert utilization(small()).mfu_metrics(LENGTHS, TIMES) == {}


def test_a_processor_has_none() -> None:
    assert utilization(small()).mfu_metrics(LENGTHS, TIMES) == {}


@pytest.mark.usefixtures("known_device")
@pytest.mark.parametrize("kind", KINDS)
def test_images_count_with_the_vision_towers_operations(kind: str) -> None:
    """verl's own count of a tower takes all for Qwen3-VL's, and tokens for patches."""
    config = config_of(kind, vocabulary=270, token=5)
    visual = KINDS[kind][1](config).float().model.visual
    visual.config._attn_implementation = "eager"
    values = torch.randn(96, 3 * 2 * config.vision_config.patch_size**2)
    with FlopCounterMode(display=False) as counter:
        visual(values, grid_thw=torch.tensor([[1, 8, 12]]))
    shares = [
        utilization(config).mfu_metrics(LENGTHS, TIMES, images)["perf/mfu/actor"]
        for images in ([24, 0], [0, 0])
    ]
    expected = 3 * counter.get_total_flops() / TIMES["time/update_actor"] / 1e12
    assert (shares[0] - shares[1]) * PEAK_TERA_FLOPS == pytest.approx(expected, rel=0.05)
