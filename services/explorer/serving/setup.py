"""Assembles the parts that serve a stage's model."""

from pathlib import Path

from services.explorer.engines import LoadedModel, LoadedStageModels
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.handler import ApiHandler
from services.explorer.serving.access import ServingAccessPolicy, read_or_create_key
from services.explorer.serving.pool import ModelBorrower, ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.serving.work import ServingRunner
from services.explorer.types import model_weights
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.runtime.http_connections import ConnectionTable, HttpLimits
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
    access = access_policy(plan, tenant)
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


def access_policy(plan: StagePlan, tenant: str) -> ServingAccessPolicy:
    """Returns the policy: on loopback a key, configured or generated; elsewhere tokens.

    Raises: UserError when the file of the key cannot be used.
    """
    explorer = plan.config.explorer
    security = Credentials.from_environment()
    key_file = None
    if not security.is_on and not explorer.rollout_model.has_own_key:
        key_file = _key_file(plan)
    return ServingAccessPolicy(
        host=explorer.listen_address,
        security=security,
        key=explorer.rollout_model.api_key if key_file is None else read_or_create_key(key_file),
        tenant=tenant,
        key_file=key_file,
    )


def _key_file(plan: StagePlan) -> Path:
    if plan.served is None or not plan.served.key_file:  # a plan of an earlier version
        raise UserError(
            "there is no key for the served model: give `explorer.rollout_model.api_key`"
        )
    return Path(plan.served.key_file)


def _build_server(
    plan: StagePlan, label: str, model: LoadedModel, pool: ServingPool, access: ServingAccessPolicy
) -> ModelServer:
    paths = (plan.config.model.model_path, plan.model_path)
    names = tuple(dict.fromkeys(name for name in (*paths, label) if name))
    writer = ResponseWriter(
        model_path=names[0],
        tokenizer=model.tokenizer,
        parsers=model.parsers,
        template_kwargs=plan.config.model.template_kwargs,
    )
    return ModelServer(
        access=access,
        port=plan.config.explorer.proxy_port,
        pool=pool,
        borrower=ModelBorrower(plan=plan, pool=pool, tokenizer=model.tokenizer, names=names),
        handler=ApiHandler(writer=writer, schemas=model.schemas),
        names=names,
        table=ConnectionTable(HttpLimits.from_open_files()),
    )
