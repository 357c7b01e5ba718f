"""A search for a text, which looks at one experience after the other and says how far it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.data.samples import STREAM_SECONDS
from trinity.inspect.conditions import parse_conditions
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.studio.connection import OpenRun
from trinity.studio.experiences import ExperienceRow, experience_row

LOOK_AT = 10_000
"""Experiences that one look goes through, from the newest on: about half a second."""


@dataclass(slots=True, kw_only=True)
class TextSearch:
    """A search and its results so far, newest first; `go_on` continues it.

    search = TextSearch(conditions=("text=answer",))
    while not search.is_done and len(search.rows) < 50:
        await search.go_on(opened, stage, wanted=50)
    """

    conditions: tuple[str, ...]
    rows: list[ExperienceRow] = field(default_factory=list)
    num_examined: int = 0
    is_done: bool = False
    """True once the oldest experience was looked at."""
    _cursor: str = ""

    async def go_on(self, opened: OpenRun, stage: buffer_pb2.StageKey, *, wanted: int) -> None:
        """Looks at some more experiences, or fewer if `wanted` are found.

        Raises: UserError naming a condition that cannot be read; TrinityError.
        """
        num_missing = wanted - len(self.rows)
        if self.is_done or num_missing <= 0:
            return
        request = query_pb2.ListExperiencesRequest(
            key=stage,
            filter=parse_conditions(self.conditions),
            limit=num_missing,
            latest_first=True,
            with_content=True,
            cursor=self._cursor,
        )
        until = self.num_examined + LOOK_AT
        call = opened.queries.ListExperiences(request, timeout=STREAM_SECONDS)
        with translate_rpc_errors():
            async for part in call:
                self.rows.extend(map(experience_row, part.experiences))
                self.num_examined += part.num_examined
                self._cursor = part.cursor
                if self.num_examined >= until:
                    call.cancel()
                    return
        self.is_done = len(self.rows) < wanted


def names_a_text(conditions: Sequence[str]) -> bool:
    """Returns true if contents have to be read to know which experiences satisfy the conditions."""
    return any(word.startswith("text=") for word in conditions)
