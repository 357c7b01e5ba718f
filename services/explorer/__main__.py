"""Starts the explorer: python -m services.explorer"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from services.explorer.control.explorer import SERVICE, Explorer, update_readiness
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine.hosts import (
    EngineHosts,
    HeadlessWorkers,
    check_place,
    group_place,
)
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import GPU_ENVIRONMENT
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import route_runs
from trinity.api.v1.explorer_pb2_grpc import (
    ExplorerServiceServicer,
    ExplorerServiceStub,
    add_ExplorerServiceServicer_to_server,
)
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.logs import log_formatter
from trinity.runtime.loops import LoopKeeper
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.host_group import HostAgent
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.worker_tenant import worker_tenant


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Runs the explorer until `stop` is set, or the workers of a host that does not lead."""
    check_place(settings)
    tenant = worker_tenant(
        "explorer",
        settings.tenant,
        Credentials.from_environment(),
        serves_all=settings.all_tenants,
    )
    if settings.host:
        await _serve_leader(settings, tenant, stop)
        return
    route_runs(
        Path(settings.run_log_dir) if settings.run_log_dir else None,
        log_formatter("explorer", settings.log_format),
    )
    load_plugins(plugin_dirs_from_environment())
    explorer = Explorer(
        settings=settings,
        start_engine=start_vllm,
        broker=NatsBroker(settings.nats_url.get_secret_value()),
        hosts=EngineHosts(settings, tenant) if settings.num_hosts > 1 else None,
    )
    await explorer.run_until(stop)


async def _serve_leader(settings: ExplorerSettings, tenant: str, stop: asyncio.Event) -> None:
    """Runs the workers that the leader asks for; ready while it is with the leader."""
    servicer = Servicer(
        name=SERVICE,
        add=add_ExplorerServiceServicer_to_server,
        implementation=ExplorerServiceServicer(),
    )
    reasons = ["the leader was not heard yet"]
    needs = {"leader": lambda: not reasons[0]}

    def record(reason: str) -> None:
        reasons[0] = reason

    async with (
        serve(settings, [servicer]) as server,
        open_channel(settings.leader) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        agent = HostAgent(
            place=group_place(settings, tenant),
            join=ExplorerServiceStub(channel).JoinEngine,
            start=partial(HeadlessWorkers.start, settings),
            on_joined=record,
        )
        keeper = LoopKeeper(
            waits=WaitRegistry(owner="explorer", on_change=lambda: None),
            report=server.health.set_loop,
        )
        background = [
            tasks.create_task(agent.serve_leader()),
            tasks.create_task(
                keeper.keep_running("readiness", lambda: update_readiness(server.health, needs))
            ),
        ]
        await stop.wait()
        for task in background:
            task.cancel()


def main() -> None:
    """Entry point of the process; plug-ins, which may ask for GPUs, are loaded later."""
    for name, value in GPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))


if __name__ == "__main__":
    main()
