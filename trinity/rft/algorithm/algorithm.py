"""Algorithms as Trinity-RFT has them: a class with a few flags, and its parts by name.

@ALGORITHM_TYPE.register_module("mine")
class MyAlgorithm(AlgorithmType):
    use_critic = False
    schema = "experience"

    @classmethod
    def default_config(cls):
        return {"repeat_times": 4, "advantage_fn": "grpo", "policy_loss_fn": "my_loss"}
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

from trinity.algorithm import algorithm_type as ours
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.errors import UserError
from trinity.plugins import Registry
from trinity.user_code.adapted_part import refuse_override

ALGORITHM_TYPE: Registry[Any] = ALGORITHM_TYPES
_PARTS: tuple[str, ...] = get_args(ours.Part)
_BUILT_IN: Mapping[str, str] = {
    "AsymREAlgorithm": "asymre",
    "CISPOAlgorithm": "cispo",
    "CPTAlgorithm": "cpt",
    "DAPOAlgorithm": "dapo",
    "DPOAlgorithm": "dpo",
    "GRPOAlgorithm": "grpo",
    "GRPOverlAlgorithm": "grpo_verl",
    "GSPOAlgorithm": "gspo",
    "GiGPOAlgorithm": "gigpo",
    "JSDAlgorithm": "jsd",
    "MIXAlgorithm": "mix",
    "MIXCHORDAlgorithm": "mix_chord",
    "MultiStepGRPOAlgorithm": "multi_step_grpo",
    "OPMDAlgorithm": "opmd",
    "OnPolicyDistillAlgorithm": "on_policy_distill",
    "PPOAlgorithm": "ppo",
    "RAFTAlgorithm": "raft",
    "RECAlgorithm": "rec",
    "RLOOAlgorithm": "rloo",
    "ReinforcePlusPlusAlgorithm": "reinforceplusplus",
    "SAPOAlgorithm": "sapo",
    "SFTAlgorithm": "sft",
    "TOPRAlgorithm": "topr",
    "sPPOAlgorithm": "sppo",
}


class AlgorithmType(ABC):
    """Base of algorithms that were written for Trinity-RFT."""

    use_critic: bool = False
    use_reference: bool = False
    compute_advantage_in_trainer: bool = False
    can_balance_batch: bool = True
    schema: str = "experience"

    @classmethod
    @abstractmethod
    def default_config(cls) -> dict[str, Any]:
        """Returns the parts by name, and `repeat_times`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name that it was registered with."""
        return str(vars(cls).get("_name", cls.__name__))

    @classmethod  # noqa: B027 - users may define it
    def check_config(cls, config: Any) -> None:
        """Marks a method that is not called: `trinity config check` has the checks."""


def adapt_algorithm(name: str, source: type) -> ours.AlgorithmType | type:
    """Returns the declaration that the class stands for; one that is no algorithm stays as it is.

    Raises: UserError when it has something that is not used here.
    """
    if not issubclass(source, AlgorithmType):
        return source
    refuse_override(
        source,
        "check_config",
        AlgorithmType,
        "the configuration is fixed before any algorithm sees it; leave the method out, and raise "
        "errors in the constructors of the parts",
    )
    config = source.default_config()
    _check_keys(source, config)
    return ours.AlgorithmType(
        name=name.rpartition(".")[2],
        summary=(source.__doc__ or "").strip().partition("\n")[0],
        when_to_use="",
        paper="",
        schema=_schema(source),
        repeat_times=config.get("repeat_times", 1),
        needs_critic=bool(source.use_critic),
        can_balance_batch=bool(source.can_balance_batch),
        loss_agg_mode=config.get("loss_agg_mode", "token-mean"),
        args={part: dict(config.get(f"{part}_args") or {}) for part in get_args(ours.Part)},
        **{part: config[part] for part in _PARTS if config.get(part)},
    )


def _check_keys(source: type, config: Mapping[str, Any]) -> None:
    known = {"repeat_times", "loss_agg_mode", *_PARTS, *(f"{part}_args" for part in _PARTS)}
    if unknown := sorted(config.keys() - known):
        raise UserError(
            f"`default_config` of {source.__name__} gives {', '.join(unknown)}, which no algorithm "
            f"decides here: set it in the file; known are {', '.join(sorted(known))}"
        )


def _schema(source: type[AlgorithmType]) -> ours.RowSchema:
    for schema in get_args(ours.RowSchema):
        if source.schema == schema:
            found: ours.RowSchema = schema
            return found
    raise UserError(
        f"`schema` of {source.__name__} is {source.schema!r}: give one of "
        f"{', '.join(get_args(ours.RowSchema))}"
    )


@lru_cache
def _algorithm_class(name: str, built_in: str) -> type[AlgorithmType]:
    declared = ALGORITHM_TYPES.built_in(built_in)
    parts = {part: getattr(declared, part) for part in _PARTS}
    config = {"repeat_times": declared.repeat_times, "loss_agg_mode": declared.loss_agg_mode}
    config |= parts | {f"{part}_args": dict(args) for part, args in declared.args.items()}
    namespace = {
        "__doc__": declared.summary,
        "__module__": __name__,
        "_name": built_in,
        "use_critic": declared.needs_critic,
        "can_balance_batch": declared.can_balance_batch,
        "schema": declared.schema,
        "default_config": classmethod(lambda _: dict(config)),
    }
    made = type(name, (AlgorithmType,), namespace)
    assert issubclass(made, AlgorithmType)
    return made


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own."""
    if (built_in := _BUILT_IN.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return _algorithm_class(name, built_in)
