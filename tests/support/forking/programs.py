"""Programs that can be forked, what is imported for them, and variables that stand in the way."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MODEL_FREE = (
    *("trinity.cli.main", "trinity.cli.config", "trinity.cli.experiment", "trinity.cli.feedback"),
    *("trinity.cli.run", "trinity.cli.taskset", "trinity.run.deploy"),
    "trinity.run.local.supervisor",
    *("services.synchronizer.__main__", "services.buffer.__main__", "services.trainer.__main__"),
    *("services.trainer.rank.__main__", "services.trainer.rank.stage"),
    *("tests.support.model_free.rank", "tests.support.model_free.explorer"),
)
"""Modules of a stack without a model."""
TRAINER = (
    *("services.trainer.__main__", "services.trainer.rank.__main__", "services.trainer.rank.stage"),
    *("services.trainer.data.encoders", "services.trainer.learner.learner"),
)
"""Modules of the trainer and its ranks."""
ENGINE = (
    *("vllm.engine.arg_utils", "vllm.v1.engine.async_llm", "vllm.v1.engine.core"),
    *("vllm.v1.worker.cpu_worker", "services.explorer.engine.vllm_worker"),
)
"""Modules of an engine on processors."""
WITH_MODELS = (
    *(*MODEL_FREE, *TRAINER, "services.explorer.__main__"),
    *ENGINE,
)
"""Modules of a stack with vLLM and verl; vLLM's come last."""
SCHEMAS = (
    *("services.explorer.openai_api.schema_worker", "llguidance", "xgrammar"),
    *("transformers.models.auto", "transformers.tokenization_utils_tokenizers"),
)
"""Modules of the process that compiles schemas of responses."""
STACKS = (
    "trinity.run.local.supervisor",
    "trinity.cli.main",
    "trinity.__main__",
    "services.*",
    "tests.chaos.*",
    "tests.integration.*",
    "tests.support.model_free.*",
)
"""Programs that are forked where a test starts them; what one of them starts is forked, too."""
NUMBER_BYTES = 4
READY = b"ready"
MAX_REQUEST_BYTES = 128 * 1024
OWN_PACKAGES = ("services", "tests", "trinity")
LIMITED = (
    *("trinity.operators.worker", "trinity.operators.tasks.worker"),
    *("services.explorer.user_process.worker"),
)
"""Programs that limit all of their memory, to which what is imported would count."""
SPAWNED = "multiprocessing.spawn"
"""Name of the program that multiprocessing starts for a process, as vLLM does for an engine."""
DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a thread would not be in a fork
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "VERL_LOGGING_LEVEL": "WARN",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set before the imports, as the services set them; a program may also say the same itself."""
NOT_COMPILED = {"TORCHDYNAMO_DISABLE": "1"}
"""Set before vLLM is imported, as the explorer sets it; nothing else is imported with it."""
MAY_BE_GIVEN = {
    **DEFAULTS,
    **NOT_COMPILED,
    "HF_HUB_OFFLINE": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Variables that a test's process or a service may have set since: they change nothing imported."""
READ_AT_IMPORT = (
    *("CUDA_", "GLOO_", "HF_", "HUGGINGFACE_", "LD_", "MALLOC_", "MKL_", "NCCL_", "OMP_"),
    *("OPENBLAS_", "PYTHON", "PYTORCH_", "SSL_", "TORCH", "TRANSFORMERS_", "VERL_", "VLLM_"),
)
"""Beginnings of variables that act where an interpreter starts or a library is imported."""
TAKEN_ON = (
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "GLOO_SOCKET_IFNAME"),
    # Libraries set these themselves, in a test's process as in the one that is forked.
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_CUDA_ARCH_LIST"),
    "VLLM_RPC_BASE_PATH",  # read where an engine starts
)
THREADS = "OMP_NUM_THREADS"
ALSO_TAKEN_ON: Mapping[str, tuple[str, ...]] = {
    "services.explorer": (THREADS,),
    SPAWNED: (
        *(THREADS, "LD_LIBRARY_PATH", "LD_PRELOAD", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS"),
        *("VLLM_DISABLE_SHARED_EXPERTS_STREAM", "VLLM_SSM_CONV_STATE_LAYOUT"),
        "VLLM_WORKER_MULTIPROC_METHOD",
    ),
}
"""By program; vLLM, and what it imports, set for its engine what allocates memory and compiles.

How many threads an engine computes with, torch is told.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A module that a command runs, and what holds for its process."""

    command: list[str]
    """Without what only prepares its process."""
    module: str
    arguments: list[str]
    is_safe: bool
    """Without the current folder among those that modules are looked for in."""
    death_signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A start, for the process that forks; descriptors are sent beside it."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    leads_session: bool
    numbers: list[int]
    """The number of each descriptor in the program."""


_SPAWN_MAIN = re.compile(
    r"from multiprocessing\.spawn import spawn_main; "
    r"spawn_main\(tracker_fd=(\d+), pipe_handle=(\d+)\)"
)


def program_of(command: Sequence[str]) -> Program | None:
    """Returns what a command runs, if it is one of our modules or a process of multiprocessing."""
    words, death_signal = list(command), 0
    if words[1:3] == ["-I", "-S"] and words[3].endswith("/trinity/runtime/process/exec_as.py"):
        if words[4] != "self":
            return None  # what it must not be able to do takes effect where it is executed
        death_signal, words = int(words[5]), words[6:]
    if not words or words[0] != sys.executable:
        return None
    match words[1:]:
        case ["-P", "-m", module, *arguments]:
            program = Program(words, module, arguments, True, death_signal)
        case ["-m", module, *arguments]:
            program = Program(words, module, arguments, False, death_signal)
        case [*options, "-c", code, "--multiprocessing-fork"] if options in ([], ["-P"]):
            found = _SPAWN_MAIN.fullmatch(code)
            return found and Program(words, SPAWNED, [*found.groups()], bool(options), death_signal)
        case _:
            return None
    is_ours = module.partition(".")[0] in OWN_PACKAGES and module not in LIMITED
    return program if is_ours else None


def acts_at_import(
    env: Mapping[str, str], image: Mapping[str, str], also_taken_on: Sequence[str] = ()
) -> list[str]:
    """Returns the variables that a forked program would have to start with."""
    names = {name for name in (*env, *image) if name.startswith(READ_AT_IMPORT)}
    names -= {*TAKEN_ON, *also_taken_on}
    return sorted(name for name in names if not _is_as_imported(name, env, image))


def _is_as_imported(name: str, env: Mapping[str, str], image: Mapping[str, str]) -> bool:
    given, had = env.get(name), image.get(name)
    return given == had or (had is None and given == MAY_BE_GIVEN.get(name))
