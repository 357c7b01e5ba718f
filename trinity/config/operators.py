"""Experience operators by name, with their arguments checked before anything starts."""

from trinity.algorithm.forms import Form, form_of
from trinity.algorithm.signature import Signature, read_signature
from trinity.config.arguments import complete_arguments
from trinity.config.data_processor import OperatorConfig
from trinity.config.near import did_you_mean
from trinity.config.plan_parts import ResolvedOperator
from trinity.config.section import Args
from trinity.config.service import ServiceConfig
from trinity.errors import UserError
from trinity.operators import OPERATORS
from trinity.plugins import load_plugins, plugin_dirs_from_environment

OPERATOR = Form(
    given="Rollouts",
    gives="Changes",
    module="trinity.operators.rollouts",
    parameter="rollouts",
)
DATA_JUICER = "data_juicer"
KEY = "data_processor.experience_pipeline.operators"


def resolve_operators(
    operators: tuple[OperatorConfig, ...], service: ServiceConfig, stage: str
) -> tuple[ResolvedOperator, ...]:
    """Returns all operators with all their arguments.

    Raises: UserError naming the stage and each setting that cannot be used.
    """
    try:
        return tuple(
            _resolved(config, service, f"{KEY}[{i}]") for i, config in enumerate(operators)
        )
    except UserError as error:
        raise UserError(f"stage `{stage}`: {error}") from error


def _resolved(config: OperatorConfig, service: ServiceConfig, key: str) -> ResolvedOperator:
    if not config.name:
        raise UserError(f"`{key}.name` is missing: give one of {', '.join(OPERATORS.names())}")
    is_own = config.name not in OPERATORS.builtins
    args = complete_arguments(
        _own_signature(config.name, key) if is_own else read_signature(_path(config.name)),
        _with_server(config, service),
        function=config.name,
        key=f"{key}.args",
        is_own=is_own,
    )
    if not is_own and args:
        _check_values(config.name, args, key)
    return ResolvedOperator(name=config.name, args=args)


def _with_server(config: OperatorConfig, service: ServiceConfig) -> Args:
    """Adds the server's address, which is configured in another section."""
    if config.name != DATA_JUICER or "server_url" in config.args:
        return config.args
    url = service.data_juicer.server_url if service.data_juicer else None
    if not url:
        raise UserError(
            "operator `data_juicer` needs a server: start `python -m trinity.data_juicer.server` "
            "and give `service.data_juicer.server_url`; `service.data_juicer.auto_start` does not "
            "do it yet"
        )
    return {**config.args, "server_url": url}


def _path(name: str) -> str:
    return OPERATORS.builtins[name]


def _own_signature(name: str, key: str) -> Signature:
    """Imports a user's function, so that its errors are found now and not in a service."""
    if "." not in name:
        load_plugins(plugin_dirs_from_environment())
    if "." not in name and name not in OPERATORS.names():
        raise UserError(
            f"`{key}.name: {name}` is not supported{did_you_mean(name, OPERATORS.names())}, "
            "or give a dotted path"
        )
    try:
        _, signature = form_of(OPERATORS.get(name), (OPERATOR,))
    except UserError as error:
        raise UserError(f"`{key}.name: {name}` {error}") from error
    return signature


def _check_values(name: str, args: Args, key: str) -> None:
    """Tries a built-in operator that has arguments; numpy is imported only then."""
    from trinity.config.operator_trial import try_operator

    try:
        try_operator(name, args)
    except UserError as error:
        raise UserError(f"`{key}.args`: {error}") from error
