"""Assembles the parts that serve a stage's model."""

from services.explorer.engines import LoadedModel, LoadedStageModels
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.connections import ConnectionTable, HttpLimits
from services.explorer.openai_api.handler import ApiHandler
from services.explorer.serving.access import ServingAccessPolicy
from services.explorer.serving.pool import ModelBorrower, ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.serving.work import ServingRunner
from services.explorer.types import model_weights
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.presence import Heartbeats
from trinity.security.credentials import Credentials


def build_serving_runner(
    *,
    plan: StagePlan,
    tenant: str,
    label: str,
    models: LoadedStageModels,
    heartbeats: Heartbeats,
    drain_seconds: float,
) -> ServingRunner:
    """Assembles everything between the engines and the address.

    Raises: UserError when the address is open to others without any protection.
    """
    explorer = plan.config.explorer
    access = ServingAccessPolicy(
        host=explorer.listen_address,
        security=Credentials.from_environment(),
        key=explorer.rollout_model.api_key,
        tenant=tenant,
    )
    access.check_host()
    pool = ServingPool(
        models.policy.replicas,
        loaded=model_weights(plan.model_path),
        min_open=explorer.min_running_model_num,
    )
    return ServingRunner(
        plan=plan,
        pool=pool,
        server=_build_server(plan, label, models.policy, pool, access),
        access=access,
        heartbeats=heartbeats,
        drain_seconds=drain_seconds,
    )


def _build_server(
    plan: StagePlan, label: str, model: LoadedModel, pool: ServingPool, access: ServingAccessPolicy
) -> ModelServer:
    paths = (plan.config.model.model_path, plan.model_path)
    names = tuple(dict.fromkeys(name for name in (*paths, label) if name))
    writer = ResponseWriter(model_path=names[0], tokenizer=model.tokenizer, parsers=model.parsers)
    return ModelServer(
        access=access,
        port=plan.config.explorer.proxy_port,
        pool=pool,
        borrower=ModelBorrower(plan=plan, pool=pool, tokenizer=model.tokenizer, names=names),
        handler=ApiHandler(writer=writer, schemas=model.schemas),
        names=names,
        table=ConnectionTable(HttpLimits.from_open_files()),
    )
