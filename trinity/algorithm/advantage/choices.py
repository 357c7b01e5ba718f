"""Checks of arguments that take one of a few words."""

from collections.abc import Iterable

from trinity.errors import UserError


def check_choice(function: str, name: str, value: str | None, choices: Iterable[str]) -> None:
    """Raises: UserError when the value is not one of the choices."""
    allowed = list(choices)
    if value not in allowed:
        raise UserError(
            f"{name} of advantage function {function} is {value!r}; in advantage_fn_args give one "
            f"of {', '.join(allowed)}"
        )
