"""Assembles the parts that serve a stage's model."""

from services.explorer.engines import RunningEngine
from services.explorer.openai_api.chat import Writer
from services.explorer.openai_api.handler import Answering
from services.explorer.serving.access import Access
from services.explorer.serving.pool import Lending, ServingPool
from services.explorer.serving.server import ServingServer
from services.explorer.serving.work import ServeWork
from services.explorer.types import model_weights
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.presence import Heartbeats
from trinity.security.credentials import Credentials


def serve_work(
    *,
    plan: StagePlan,
    tenant: str,
    label: str,
    engine: RunningEngine,
    beats: Heartbeats,
    drain_seconds: float,
) -> ServeWork:
    """Assembles everything between the engines and the address.

    Raises: UserError when the address is open to others without any protection.
    """
    explorer = plan.config.explorer
    names = tuple(
        dict.fromkeys(n for n in (plan.config.model.model_path, plan.model_path, label) if n)
    )
    pool = ServingPool(
        engine.each,
        holding=model_weights(plan.model_path),
        min_open=explorer.min_running_model_num,
    )
    access = Access(
        host=explorer.listen_address,
        security=Credentials.from_environment(),
        key=explorer.rollout_model.api_key,
        tenant=tenant,
    )
    access.check_host()
    server = ServingServer(
        access=access,
        port=explorer.proxy_port,
        pool=pool,
        lending=Lending(plan=plan, pool=pool, tokenizer=engine.tokenizer, names=names),
        answering=Answering(
            writer=Writer(model_path=names[0], tokenizer=engine.tokenizer, parsers=engine.parsers)
        ),
        names=names,
    )
    return ServeWork(
        plan=plan,
        pool=pool,
        server=server,
        access=access,
        beats=beats,
        drain_seconds=drain_seconds,
    )
