"""CPU support for verl: platform, engines, attention, heads of models, offload.

`install()` must run before anything else of verl is imported; on a machine with CUDA it only mends
the heads. It replaces three functions of verl (tests/unit/runtime/test_library_internals.py).
"""

import contextlib
import resource
import types
from collections.abc import Iterator
from typing import Literal

import torch
from transformers.utils import is_flash_attn_greater_or_equal
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import set_platform

AttentionKernel = Literal["sdpa", "flash_attention_2"]
FLASH_ATTENTION: AttentionKernel = "flash_attention_2"


def attention_kernel() -> AttentionKernel:
    """Returns the best attention implementation that this machine can run.

    Earlier versions of flash-attn have soft caps in the forward pass alone.
    """
    has_flash = torch.cuda.is_available() and is_flash_attn_greater_or_equal("2.6.2")
    return FLASH_ATTENTION if has_flash else "sdpa"


def install() -> None:
    """Registers the CPU as a device of verl; call it once per process."""
    _load_value_heads_as_configured()
    _load_language_models_with_heads()
    if torch.cuda.is_available():
        return
    set_platform(CpuPlatform())
    _register_engines()
    _offload_without_pinned_memory()


def _peak_memory_bytes(*_: object) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_module() -> types.ModuleType:
    """Returns a module that replaces `torch.cuda` in verl."""
    module = types.ModuleType("processor")
    memory = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
    for name in memory:
        setattr(module, name, _peak_memory_bytes)
    members = {
        "get_device_name": lambda *_: "cpu",
        "mem_get_info": lambda *_: (0, 0),
        "empty_cache": lambda: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "__getattr__": lambda name: getattr(torch.cpu, name),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


class CpuPlatform(PlatformBase):  # type: ignore[misc]  # verl carries no types
    """The CPU as verl's device: one device, gloo between ranks."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(
        self,
        device_index: int = 0,  # noqa: ARG002  # verl's signature
    ) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002  # verl's signature
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _register_engines() -> None:
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    engines = {
        "language_model": transformer_impl.FSDPEngineWithLMHead,
        "value_model": transformer_impl.FSDPEngineWithValueHead,
    }
    for model_type, engine in engines.items():
        EngineRegistry.register(model_type, "fsdp2", device="cpu")(engine)


def _load_value_heads_as_configured() -> None:
    """Replaces verl's loader, which always requests flash attention."""
    import verl.utils.model
    from transformers import AutoModelForTokenClassification, PretrainedConfig

    def load(
        local_path: str,
        torch_dtype: object,
        model_config: PretrainedConfig,
        trust_remote_code: bool,
    ) -> object:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,  # noqa: SLF001 (no public name)
            trust_remote_code=trust_remote_code,
        )

    verl.utils.model.load_valuehead_model = load


def _load_language_models_with_heads() -> None:
    """Replaces verl's choice of a class, which loads models called `...LMHeadModel` without it."""
    import verl.utils.model
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoModel,
        AutoModelForCausalLM,
        PretrainedConfig,
    )

    choose = verl.utils.model.get_hf_auto_model_class

    def choose_with_head(hf_config: PretrainedConfig) -> object:
        chosen = choose(hf_config)
        lacks_head = chosen is AutoModel and type(hf_config) in MODEL_FOR_CAUSAL_LM_MAPPING
        return AutoModelForCausalLM if lacks_head else chosen

    verl.utils.model.get_hf_auto_model_class = choose_with_head


def _offload_without_pinned_memory() -> None:
    """Turns off pinned memory for forward-only weights, as it needs a GPU driver."""
    from verl.workers.engine.fsdp import transformer_impl

    pinned = transformer_impl.CPUOffloadPolicy
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: pinned(pin_memory=pin_memory and False)
