"""Why a stage cannot go on, found among what its tasks raised."""

from collections.abc import Iterator

from trinity.errors import RpcError, TrinityError, UserError


class StageFailed(TrinityError):
    """The stage cannot go on here; the text is the sentence to show."""


_TOLD = (StageFailed, UserError, RpcError)


def sentence_of(error: BaseException) -> str | None:
    """What to tell people; None when something is among it that nobody expected."""
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
