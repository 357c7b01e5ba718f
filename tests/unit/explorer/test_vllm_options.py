"""How vLLM is set up."""

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from services.explorer.engine.interface import EngineOptions
from services.explorer.engine.vllm import drawn_by
from services.explorer.engine.vllm_options import (
    Hardware,
    engine_arguments,
    prepare_environment,
    temporary_environment,
    visible_devices,
)
from services.explorer.engine.vllm_worker import WeightReloadExtension, meeting_place
from trinity.config.checks.advice import LEAST_TEMPERATURE
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import UserError
from trinity.types import JsonObject

CPU = Hardware(has_gpu=False, num_cpus=4)
GPU = Hardware(has_gpu=True, num_cpus=4)


def options(**rollout: object) -> EngineOptions:
    return EngineOptions(
        model_path="model",
        max_model_len=64,
        end_token_ids=(1,),
        rollout=RolloutModelConfig.model_validate(rollout),
    )


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_logprobs_are_processed_and_no_sampling_default_of_the_model_slips_in(
    machine: Hardware,
) -> None:
    arguments = engine_arguments(options(), machine)
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["generation_config"] == "vllm"


def test_a_gpu_gets_what_the_configuration_says() -> None:
    arguments = engine_arguments(
        options(gpu_memory_utilization=0.5, tensor_parallel_size=2, dtype="float16"), GPU
    )
    expected: JsonObject = {
        "gpu_memory_utilization": 0.5,
        "tensor_parallel_size": 2,
        "data_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "enable_expert_parallel": False,
        "dtype": "float16",
    }
    assert {name: arguments[name] for name in expected} == expected
    assert "kv_cache_memory_bytes" not in arguments


def test_all_sizes_of_an_engine_reach_vllm_and_count_its_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"tensor_parallel_size": 1, "data_parallel_size": 2, "pipeline_parallel_size": 2}
    spread = options(engine_num=2, enable_expert_parallel=True, **sizes)
    expected: JsonObject = {**sizes, "enable_expert_parallel": True}
    arguments = engine_arguments(spread, GPU)
    assert {name: arguments[name] for name in expected} == expected
    pytest.importorskip("vllm.engine.arg_utils").AsyncEngineArgs(**arguments)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    assert visible_devices(replace(spread, number=1), GPU) == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


def test_a_cpu_never_chunks_prefill_which_kills_engines_with_seeds() -> None:
    arguments = engine_arguments(options(), CPU)
    assert arguments["enable_chunked_prefill"] is False
    assert isinstance(arguments["max_num_batched_tokens"], int)
    assert arguments["max_num_batched_tokens"] >= 64


def test_on_a_cpu_all_sequences_have_room_at_once(tmp_path: Path) -> None:
    """76 million parameters: a block of 128 tokens takes 8.25 MiB."""
    shape = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 11}
    sizes = {"vocab_size": 261, "intermediate_size": 2048, "model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps({**shape, **sizes}))

    def cache(gib: int, max_num_seqs: int, **more: object) -> int:
        given = options(dtype="float32", extra_engine_args={"max_num_seqs": max_num_seqs}, **more)
        machine = Hardware(has_gpu=False, num_cpus=2, memory_bytes=gib << 30)
        named = replace(given, model_path=str(tmp_path))
        found = engine_arguments(named, machine)["kv_cache_memory_bytes"]
        assert isinstance(found, int)
        return found

    assert cache(24, 64) == 64 * 11 * 2 * 768 * 4 * 128
    assert cache(24, 256) == 1 << 30
    assert cache(24, 1) == 256 << 20
    assert cache(8, 256) == 512 << 20
    assert cache(8, 256, engine_num=4) == 256 << 20


def test_the_cache_of_a_model_that_is_not_known_is_small(tmp_path: Path) -> None:
    machine = Hardware(has_gpu=False, num_cpus=2, memory_bytes=24 << 30)
    (tmp_path / "config.json").write_text("{}")
    for path in ("of/the-hub", str(tmp_path)):
        arguments = engine_arguments(replace(options(), model_path=path), machine)
        assert arguments["kv_cache_memory_bytes"] == 256 << 20


def test_extra_engine_arguments_win() -> None:
    arguments = engine_arguments(options(extra_engine_args={"max_num_seqs": 8}), CPU)
    assert arguments["max_num_seqs"] == 8


def test_what_the_user_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "3"})
    prepare_environment("name/on-the-hub", CPU)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "HF_HUB_OFFLINE" not in os.environ


def test_a_question_for_gpus_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process is forked, and CUDA that was started before cannot be used in it."""
    for hardware, expected in ((GPU, "1"), (CPU, None)):
        monkeypatch.setattr(os, "environ", {})
        prepare_environment("model", hardware)
        assert os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == expected


def test_each_of_several_engines_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    pair = options(engine_num=2, tensor_parallel_size=2)
    seen = []
    for number in range(2):
        with temporary_environment(visible_devices(replace(pair, number=number), GPU)):
            seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen == ["4,5", "6,7"]
    assert os.environ == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    with pytest.raises(ValueError, match=r"3 engines of 2 GPUs each.*shows 4"):
        visible_devices(replace(options(engine_num=3, tensor_parallel_size=2), number=2), GPU)
    assert visible_devices(options(tensor_parallel_size=2), GPU) == {}
    assert visible_devices(pair, CPU) == {}


def test_engines_on_one_cpu_share_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    prepare_environment("model", replace(CPU, num_cpus=8), 2)
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_the_engine_tells_experts_where_training_replays_them() -> None:
    for records in (True, False):
        arguments = engine_arguments(replace(options(), records_experts=records), GPU)
        assert arguments.get("enable_return_routed_experts", False) is records


@pytest.mark.parametrize(("num_experts", "dtype"), [(254, np.uint8), (256, np.int16)])
def test_experts_are_those_of_the_pass_that_drew_a_token(
    num_experts: int, dtype: type[np.generic]
) -> None:
    read = np.arange(5, dtype=np.uint8).reshape(5, 1, 1)  # a prompt of three, and two of three
    found = drawn_by(read, 3, 3, num_experts)
    assert found.dtype == dtype
    assert found.ravel().tolist() == [3, 4, 5]
    for missing in (read[:4], None):
        with pytest.raises(UserError, match="and 5 were read: leave out"):
            drawn_by(missing, 3, 3, num_experts)


def test_the_least_temperature_that_is_told_of_is_vllms() -> None:
    package = importlib.util.find_spec("vllm")
    assert package is not None and package.origin is not None
    text = Path(package.origin).with_name("sampling_params.py").read_text()
    assert "_MAX_TEMP = 1e-2\n" in text and LEAST_TEMPERATURE == 1e-2
    assert "self.temperature = max(self.temperature, _MAX_TEMP)" in text


@pytest.mark.parametrize(
    ("given", "num_workers", "is_kept"),
    [
        ("tcp://10.0.0.1:4100", 1, False),
        ("tcp://127.0.0.1:4100", 2, True),
        ("file:///tmp/vllm_dist_1", 1, True),
        ("env://", 1, True),
    ],
)
def test_a_worker_alone_meets_none_at_a_port(
    given: str, num_workers: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    places = {meeting_place(given, num_workers) for _ in range(2)}
    if is_kept:
        assert places == {given}
    else:
        assert len(places) == 2, "each time another file"
        assert all(place.startswith(f"file://{tmp_path}/store-") for place in places)


def test_a_folder_that_no_address_can_name_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/runs/try #3/sockets")
    assert "#" not in meeting_place("tcp://10.0.0.1:4100", 1)


def test_what_vllm_tells_its_worker_passes_through_the_extension() -> None:
    class Worker(WeightReloadExtension):
        parallel_config = SimpleNamespace(world_size=1)

        def __init__(self, given: str) -> None:
            self.distributed_init_method = given

    assert Worker("env://").distributed_init_method == "env://"
    assert Worker("tcp://10.0.0.1:4100").distributed_init_method.startswith("file://")
