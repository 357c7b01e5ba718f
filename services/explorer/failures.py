"""The reason why a stage cannot go on, found among the errors of its tasks."""

from collections.abc import Iterator

from trinity.errors import RpcError, TrinityError, UserError


class StageFailed(TrinityError):
    """The stage cannot go on here; the text is shown to users."""


_TOLD = (StageFailed, UserError, RpcError)


def sentence_of(error: BaseException) -> str | None:
    """Returns the text to show to users; None when any of the errors is unexpected."""
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, _TOLD) for leaf in leaves):
        return None
    return str(leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
