"""Starts the explorer: python -m services.explorer"""

import asyncio
import os
import sys
from pathlib import Path

from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import GPU_ENVIRONMENT
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import route_runs
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.rpc.runner import run_service
from trinity.runtime.logs import log_formatter


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Runs the explorer until `stop` is set."""
    route_runs(
        Path(settings.run_log_dir) if settings.run_log_dir else None,
        log_formatter("explorer", settings.log_format),
    )
    load_plugins(plugin_dirs_from_environment())
    explorer = Explorer(
        settings=settings,
        start_engine=start_vllm,
        broker=NatsBroker(settings.nats_url.get_secret_value()),
    )
    await explorer.run_until(stop)


def main() -> None:
    """Entry point of the process; plug-ins, which may ask for GPUs, are loaded later."""
    for name, value in GPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))


if __name__ == "__main__":
    main()
