"""Resolves experience operators and task pipelines."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from trinity.algorithm.forms import RequiredSignature, matching_signature
from trinity.algorithm.signature import Signature, read_signature
from trinity.config.error_collector import ErrorCollector, all_of, did_you_mean
from trinity.config.plan.algorithm import merge_arguments
from trinity.config.plan.parts import ResolvedOperator, ResolvedRows
from trinity.config.plan.task_storage import resolve_data_path
from trinity.config.schema.base import Args
from trinity.config.schema.buffer import OperatorConfig, TaskPipelineConfig
from trinity.config.schema.data import ExperienceBufferConfig, TasksetConfig
from trinity.config.schema.experiment import Config, ServiceConfig
from trinity.errors import UserError
from trinity.operators import OPERATORS
from trinity.operators.tasks import TASK_OPERATORS
from trinity.operators.tasks.task_pipeline import Ordering, ResolvedTaskPipeline, TaskOperator
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.json_values import JsonValue
from trinity.user_code.data_juicer.address import check_address

TASK_OPERATOR = RequiredSignature(
    input_type="TaskRows",
    return_type="TaskChanges",
    module="trinity.operators.tasks.task_rows",
    parameter="tasks",
)
DATA_JUICER = "data_juicer"
_HOW_TO_HAVE_A_SERVER = (
    "give the `service.data_juicer.server_url` of a running one, or "
    "`service.data_juicer.auto_start: true`"
)
TASK_PIPELINE = "data_processor.task_pipeline"

Given = TypeVar("Given", TasksetConfig, ExperienceBufferConfig)
Resolved = TypeVar("Resolved", bound=ResolvedRows)

OPERATOR = RequiredSignature(
    input_type="Rollouts",
    return_type="Changes",
    module="trinity.operators.rollouts",
    parameter="rollouts",
)
EXPERIENCE_PIPELINE = "data_processor.experience_pipeline.operators"


def has_inputs(config: Config) -> bool:
    """True if the pipeline names the files to read."""
    pipeline = config.data_processor.task_pipeline
    return pipeline is not None and bool(pipeline.inputs)


def use_pipeline_inputs(config: Config, rows: Given) -> Given:
    """Points the rows at the pipeline's first file, which replaces the taskset's own path."""
    pipeline = config.data_processor.task_pipeline
    if pipeline is None or not pipeline.inputs:
        return rows
    changed = {"storage_type": "file", "path": pipeline.inputs[0], "table": None}
    return rows.model_copy(update=changed)


def attach_task_pipeline(config: Config, rows: Resolved) -> Resolved:
    """Attaches the pipeline to the taskset, or to the trainer's rows.

    Raises: UserError naming each setting that cannot be used.
    """
    configured = config.data_processor.task_pipeline
    if configured is None:
        return rows
    _check_source(configured, rows)
    pipeline = ResolvedTaskPipeline(
        operators=_operators(configured, config.service),
        target_fields=configured.target_fields,
        added_scores=rows.selector.feature_keys,
        ordering=Ordering(
            method=configured.order_method,
            priority_weights=configured.priority_weights,
            top_k=configured.top_k,
            folding_layers=configured.folding_layers,
            seed=config.seed,
        ),
        further_paths=tuple(resolve_data_path(path) for path in configured.inputs[1:]),
    )
    return rows.model_copy(update={"task_pipeline": pipeline})


def check_task_operators(config: Config) -> None:
    """Raises UserError with a line for each operator that cannot be used on any rows."""
    if config.data_processor.task_pipeline is not None:
        _operators(config.data_processor.task_pipeline, config.service)


def _check_source(pipeline: TaskPipelineConfig, rows: ResolvedRows) -> None:
    if rows.storage_type == "queue":
        raise UserError(
            f"`{TASK_PIPELINE}` takes whole tasksets, and the tasks of a queue arrive one by one: "
            "send only those to explore, or give another `storage_type`"
        )
    kind = rows.selector.selector_type
    if pipeline.priority_weights and pipeline.top_k < 0 and kind != "sequential":
        raise UserError(
            f"`{TASK_PIPELINE}.priority_weights` put tasks into an order, and "
            f"`data_selector.selector_type: {kind}` draws them in another one: make it sequential, "
            "or give `top_k` to keep the first alone"
        )


def _operators(pipeline: TaskPipelineConfig, service: ServiceConfig) -> tuple[TaskOperator, ...]:
    if pipeline.config_path is not None:
        args: Args = {"config_path": pipeline.config_path, "np": pipeline.num_process}
        config = OperatorConfig(name=DATA_JUICER, args=args)
        return (_resolve_task_operator(config, service, f"{TASK_PIPELINE}.config_path"),)
    load_plugins(plugin_dirs_from_environment())
    operators = _merge_data_juicer(pipeline.operators, pipeline.num_process, service)
    return all_of(
        [partial(_resolve_task_operator, operator, service, key) for key, operator in operators]
    )


def _merge_data_juicer(
    operators: Sequence[OperatorConfig], num_processes: int, service: ServiceConfig
) -> list[tuple[str, OperatorConfig]]:
    """Merges consecutive operators of Data-Juicer into one call."""
    merged: list[tuple[str, OperatorConfig]] = []
    data_juicer: list[JsonValue] = []
    errors = ErrorCollector()
    for i, operator in enumerate(operators):
        key = f"{TASK_PIPELINE}.operators[{i}]"
        errors.attempt(partial(_check_task_operator, operator.name, key, service))
        if "." in operator.name or operator.name in TASK_OPERATORS.names():
            data_juicer = []
            merged.append((key, operator))
            continue
        if not data_juicer:
            args: Args = {"operators": data_juicer, "np": num_processes}
            merged.append((key, OperatorConfig.model_construct(name=DATA_JUICER, args=args)))
        data_juicer.append({operator.name: dict(operator.args)})
    errors.raise_all()
    return merged


def _check_task_operator(name: str, key: str, service: ServiceConfig) -> None:
    if not name:
        raise UserError(f"`{key}.name` is missing: give one of {', '.join(TASK_OPERATORS.names())}")
    is_known = "." in name or name in TASK_OPERATORS.names()
    if not is_known and service.data_juicer is None:
        near = did_you_mean(name, TASK_OPERATORS.names())
        raise UserError(
            f"`{key}.name: {name}` is not a task operator here{near}; those of Data-Juicer need "
            f"its server: {_HOW_TO_HAVE_A_SERVER}; or give a dotted path for one of your own"
        )


def _resolve_task_operator(
    config: OperatorConfig, service: ServiceConfig, key: str
) -> TaskOperator:
    is_own = config.name not in TASK_OPERATORS.builtins
    args = config.args
    if config.name == DATA_JUICER and "server_url" not in args:
        args = {**args, "server_url": _server_url(service)}
    complete = merge_arguments(
        _user_task_operator_signature(config.name, key)
        if is_own
        else read_signature(TASK_OPERATORS.builtins[config.name]),
        args,
        function=config.name,
        key=f"{key}.args",
        is_own=is_own,
    )
    return TaskOperator(name=config.name, args=complete, is_own=is_own)


def _server_url(service: ServiceConfig) -> str:
    url = service.data_juicer.address if service.data_juicer else None
    if not url:
        raise UserError(
            f"`{TASK_PIPELINE}` sends tasks to Data-Juicer, which needs a server: "
            f"{_HOW_TO_HAVE_A_SERVER}"
        )
    check_address(url)
    return url


def _user_task_operator_signature(name: str, key: str) -> Signature:
    """Imports a user's function, so that its errors are found now and not in a service."""
    try:
        _, signature = matching_signature(TASK_OPERATORS.get(name), (TASK_OPERATOR,))
    except UserError as error:
        raise UserError(f"`{key}.name: {name}` {error}") from error
    return signature


def resolve_operators(
    operators: tuple[OperatorConfig, ...], service: ServiceConfig
) -> tuple[ResolvedOperator, ...]:
    """Returns all operators with all their arguments.

    Raises: UserError naming each setting that cannot be used.
    """
    return all_of(
        [
            partial(_resolve_experience_operator, config, service, f"{EXPERIENCE_PIPELINE}[{i}]")
            for i, config in enumerate(operators)
        ]
    )


def _resolve_experience_operator(
    config: OperatorConfig, service: ServiceConfig, key: str
) -> ResolvedOperator:
    if not config.name:
        raise UserError(f"`{key}.name` is missing: give one of {', '.join(OPERATORS.names())}")
    load_plugins(plugin_dirs_from_environment())
    is_own = config.name not in OPERATORS.builtins
    args = merge_arguments(
        _user_operator_signature(config.name, key)
        if is_own
        else read_signature(OPERATORS.builtins[config.name]),
        _with_server(config, service, key),
        function=config.name,
        key=f"{key}.args",
        is_own=is_own,
    )
    if not is_own and args:
        _check_values(config.name, args, key)
    return ResolvedOperator(name=OPERATORS.plan_name(config.name), args=args)


def _with_server(config: OperatorConfig, service: ServiceConfig, key: str) -> Args:
    """Adds the server's address, which is configured in another section."""
    if config.name != DATA_JUICER or "server_url" in config.args:
        return config.args
    url = service.data_juicer.address if service.data_juicer else None
    if not url:
        raise UserError(f"`{key}.name: data_juicer` needs a server: {_HOW_TO_HAVE_A_SERVER}")
    return {**config.args, "server_url": url}


def _user_operator_signature(name: str, key: str) -> Signature:
    """Imports a user's function, so that its errors are found now and not in a service."""
    if "." not in name and name not in OPERATORS.names():
        raise UserError(
            f"`{key}.name: {name}` is not supported{did_you_mean(name, OPERATORS.names())}, "
            "or give a dotted path"
        )
    try:
        _, signature = matching_signature(OPERATORS.get(name), (OPERATOR,))
    except UserError as error:
        raise UserError(f"`{key}.name: {name}` {error}") from error
    return signature


def _check_values(name: str, args: Args, key: str) -> None:
    """Tries a built-in operator that has arguments; numpy is imported only then."""
    from trinity.config.plan.trials import probe_operator  # it imports numpy

    try:
        probe_operator(name, args)
    except UserError as error:
        told = (f"`{key}.args`: {line}" for line in str(error).splitlines())
        raise UserError("\n".join(told)) from error
