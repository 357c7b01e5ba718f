"""Arguments of a function that the user chose by name, checked against its signature."""

from trinity.algorithm.signature import Signature
from trinity.config.near import did_you_mean
from trinity.config.section import Args
from trinity.errors import UserError


def complete_arguments(
    signature: Signature, given: Args, *, function: str, key: str, is_own: bool
) -> Args:
    """Merges the given arguments over the function's defaults (a user's function has its own).

    Raises: UserError naming an argument that is unknown, wrong or missing.
    """
    known = signature.arguments
    for name, value in given.items():
        if name not in known and not signature.takes_any:
            raise UserError(
                f"`{function}` has no argument `{key}.{name}`{did_you_mean(name, known)}"
            )
        if name in known and not known[name].fits(value):
            raise UserError(f"`{key}.{name}` must be {known[name].demand}, not {value!r}")
    complete = {**({} if is_own else signature.defaults), **given}
    for name, argument in known.items():
        if argument.is_required and name not in complete:
            raise UserError(f"`{function}` needs the argument `{key}.{name}`: give it")
    return complete
