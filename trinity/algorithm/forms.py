"""The required signatures of user-defined advantages and policy losses."""

from dataclasses import dataclass

from trinity.algorithm.signature import Signature, signature_of
from trinity.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A signature: the type of the positional argument, and the return type."""

    given: str
    gives: str
    module: str
    """The module of both types."""
    parameter: str

    def __str__(self) -> str:
        return (
            f"`def name({self.parameter}: {self.given}, *, your_argument: float = 1.0) -> "
            f"{self.gives}` (types of {self.module})"
        )

    def fits(self, signature: Signature) -> bool:
        """Checks the annotations of a function; the return annotation may be missing."""
        return _last(signature.given or "") == self.given and (
            _last(signature.gives) in ("", self.gives)
        )


GROUP_ADVANTAGE = Form(
    given="Samples",
    gives="Advantages",
    module="trinity.algorithm.advantage.samples",
    parameter="samples",
)
TOKEN_ADVANTAGE = Form(
    given="TokenBatch",
    gives="TokenAdvantages",
    module="trinity.algorithm.token_advantage.token_batch",
    parameter="batch",
)
POLICY_LOSS = Form(
    given="PolicyInputs",
    gives="PolicyLoss",
    module="trinity.algorithm.policy_loss.inputs",
    parameter="inputs",
)


def form_of(function: object, forms: tuple[Form, ...]) -> tuple[Form, Signature]:
    """Returns the first of the forms that the function has, and its signature.

    Raises: UserError with what was expected.
    """
    expected = " or ".join(map(str, forms))
    if not callable(function) or isinstance(function, type):
        raise UserError(f"is no function: write {expected}")
    try:
        signature = signature_of(function)
    except ValueError:  # e.g. a callable written in C
        raise UserError(f"is a function without a signature: write {expected}") from None
    for form in forms:
        if form.fits(signature):
            return form, signature
    raise UserError(f"is `{_shown(signature)}`: write {expected}")


def _last(annotation: str) -> str:
    """Returns the type's name without its module."""
    return annotation.strip("\"'").split(".")[-1]


def _shown(signature: Signature) -> str:
    given = [] if signature.given is None else [signature.given or "..."]
    gives = f" -> {signature.gives}" if signature.gives else ""
    return f"def {signature.name}({', '.join([*given, *signature.arguments])}){gives}"
