"""Cuts the lists of answers, so that they stay below the limit of a message."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES

MessageT = TypeVar("MessageT", bound=Message)
ANSWER_BYTES = MAX_REQUEST_BYTES - 512 * 1024
"""Limit for the lists of an answer: every gRPC client takes 4 MiB unless told otherwise."""
ITEM_BYTES = 8
"""Most bytes that a list adds to an item: its tag and its length."""


def first_within(items: Iterable[MessageT], max_bytes: int = ANSWER_BYTES) -> list[MessageT]:
    """Returns the first messages that fit together, and at least one: each has a bound itself."""
    taken: list[MessageT] = []
    num_left = max_bytes
    for item in items:
        num_left -= item.ByteSize() + ITEM_BYTES
        if num_left < 0 and taken:
            break
        taken.append(item)
    return taken


def fair_within(
    items: Sequence[MessageT],
    owner_of: Callable[[MessageT], Hashable],
    max_bytes: int = ANSWER_BYTES,
) -> list[MessageT]:
    """Returns as many messages as fit, in their order, and of each owner as many as of others.

    One tenant with thousands of items cannot keep the items of another out.
    """
    seen: Counter[Hashable] = Counter()
    ranks = []
    for index, item in enumerate(items):
        owner = owner_of(item)
        ranks.append((seen[owner], index))
        seen[owner] += 1
    by_rank = [index for _, index in sorted(ranks)]
    num_taken = len(first_within((items[index] for index in by_rank), max_bytes))
    return [items[index] for index in sorted(by_rank[:num_taken])]
