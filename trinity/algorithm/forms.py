"""The required signatures of user-defined advantages and policy losses."""

from dataclasses import dataclass

from trinity.algorithm.signature import Signature, signature_of
from trinity.errors import UserError

RESERVED = frozenset({"loss", "final_loss", "kl", "kl_loss", "entropy", "entropy_loss"})
"""Metrics that the trainer has itself; a class's own go below the name of its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSignature:
    """A signature: the type of the positional argument, and the return type."""

    input_type: str
    return_type: str
    module: str
    """The module of both types."""
    parameter: str

    def __str__(self) -> str:
        return (
            f"`def name({self.parameter}: {self.input_type}, *, your_argument: float = 1.0) -> "
            f"{self.return_type}` (types of {self.module})"
        )

    def matches(self, signature: Signature) -> bool:
        """Checks the annotations of a function; the return annotation may be missing."""
        return _last(signature.input_type or "") == self.input_type and (
            _last(signature.return_type) in ("", self.return_type)
        )


GROUP_ADVANTAGE = RequiredSignature(
    input_type="Samples",
    return_type="Advantages",
    module="trinity.algorithm.advantage.samples",
    parameter="samples",
)
TOKEN_ADVANTAGE = RequiredSignature(
    input_type="TokenBatch",
    return_type="TokenAdvantages",
    module="trinity.algorithm.token_advantage.token_batch",
    parameter="batch",
)
POLICY_LOSS = RequiredSignature(
    input_type="PolicyInputs",
    return_type="PolicyLoss",
    module="trinity.algorithm.policy_loss.inputs",
    parameter="inputs",
)
ENTROPY_LOSS = RequiredSignature(
    input_type="EntropyInputs",
    return_type="PolicyLoss",
    module="trinity.algorithm.entropy.inputs",
    parameter="inputs",
)


def matching_signature(
    function: object, signatures: tuple[RequiredSignature, ...]
) -> tuple[RequiredSignature, Signature]:
    """Returns the first required signature that the function matches, and the function's own.

    Raises: UserError with the expected signatures.
    """
    expected = " or ".join(map(str, signatures))
    if not callable(function) or isinstance(function, type):
        raise UserError(
            f"is no function: write {expected}, or derive a class from Trinity-RFT's base"
        )
    try:
        signature = signature_of(function)
    except ValueError:  # e.g. a callable written in C
        raise UserError(f"is a function without a signature: write {expected}") from None
    for required in signatures:
        if required.matches(signature):
            return required, signature
    raise UserError(f"is `{_shown(signature)}`: write {expected}")


def _last(annotation: str) -> str:
    """Returns the type's name without its module."""
    return annotation.strip("\"'").split(".")[-1]


def _shown(signature: Signature) -> str:
    first = [] if signature.input_type is None else [signature.input_type or "..."]
    returns = f" -> {signature.return_type}" if signature.return_type else ""
    return f"def {signature.name}({', '.join([*first, *signature.arguments])}){returns}"
