"""Checks task sets of hubs, in the process of each hub, and names the needs of their runs."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain

from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.user_code.hubs.place import HubPlace, has_environment
from trinity.user_code.hubs.process import LOAD_SECONDS, HubFailed, HubProcess, texts


def check_hub(place: HubPlace) -> None:
    """Loads a task set and reads its first row, where the hub has an environment.

    Raises: UserError if it cannot be loaded, fails, or has no rows.
    """
    if has_environment(place.hub):
        _notes(str(place))


def hub_notes(stages: Sequence[StagePlan]) -> Iterator[str]:
    """Yields sentences about the needs of episodes: network, logins, programs."""
    for taskset in chain.from_iterable((*each.tasksets, *each.eval_tasksets) for each in stages):
        place = HubPlace.parse(taskset.path)
        if place is not None and has_environment(place.hub):
            try:
                notes = _notes(str(place))
            except UserError:  # an error of the check
                continue
            yield from (f"taskset `{taskset.name}`: {note}" for note in notes)


@cache
def _notes(text: str) -> Sequence[str]:
    place = HubPlace.parse(text)
    assert place is not None
    return asyncio.run(_asked(place))


async def _asked(place: HubPlace) -> Sequence[str]:
    try:
        hub = await HubProcess.start(place)
        try:
            if not await hub.answer("rows", LOAD_SECONDS, count=1):
                raise UserError(f"{place.path} has no tasks")
            return texts(await hub.answer("notes", LOAD_SECONDS))
        finally:
            await hub.kill()
    except HubFailed as error:
        raise UserError(str(error)) from error
