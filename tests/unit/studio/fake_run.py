"""A run that answers without processes, for pages in Streamlit's AppTest."""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.run.progress.view import Evaluation
from trinity.studio.connection import ConnectionState, OpenRun, Phase
from trinity.studio.context import StudioContext, StudioOptions, set_context
from trinity.studio.history import RunHistory, StageHistory
from trinity.studio.lanes import LaneHistory
from trinity.studio.visitors import OWNER, Visitor

T = TypeVar("T")
CODE_TAG, TAG = re.compile("</?code>"), re.compile("<[^>]+>")
Answer = Message | Sequence[Message] | Exception
STAGE = "rft"
KEY = buffer_pb2.StageKey(tenant="default", experiment_id="e", stage=STAGE)


@dataclass
class FakeService:
    """Answers calls by their names: with one message, with several as a stream, or an error.

    A function answers by the request.
    """

    answers: dict[str, Answer | Callable[[Any], Answer]]
    requests: dict[str, list[Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        def call(request: Any, **_: Any) -> Any:
            self.requests.setdefault(name, []).append(request)
            answer = self.answers[name]
            answer = answer(request) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return _stream(answer) if isinstance(answer, list) else _single(answer)

        return call


async def _stream(messages: Sequence[Message]) -> AsyncIterator[Message]:
    for message in messages:
        yield message


async def _single(message: Any) -> Message:
    return cast(Message, message)


class FakeStudio:
    """The context of pages: one open run, in a directory."""

    def __init__(self, job_dir: Path, **answers: Answer | Callable[[Any], Answer]) -> None:
        self.places = (job_dir,)
        self.options = StudioOptions(places=(job_dir,))
        self.service = FakeService(dict(answers))
        self.history = RunHistory(
            stages={STAGE: StageHistory(name=STAGE, opened_millis=1)}, is_read=True
        )
        opened = OpenRun(
            system=cast(Any, None),
            buffer=cast(Any, self.service),
            queries=cast(Any, self.service),
            synchronizer=cast(Any, self.service),
            tenant="default",
            label="sums/first",
            experiment_id="e",
            is_live=False,
        )
        self.connection = SimpleNamespace(
            job_dir=job_dir,
            opened=opened,
            touch=lambda: None,
            state=ConnectionState(Phase.OPEN),
        )

    def visitor(self) -> Visitor:
        """The one who started Studio."""
        return OWNER

    def system(self) -> None:
        """There are no services by address."""

    def turn(self) -> AbstractContextManager[bool]:
        """It is always its turn."""
        return nullcontext(True)

    def view(self, job_dir: Path) -> Any:
        """The only run."""
        del job_dir
        return SimpleNamespace(
            connection=self.connection, history=self.history, lanes=LaneHistory()
        )

    def wait_for(self, work: Coroutine[object, object, T], seconds: float = 1.0) -> T:
        """Runs it here."""
        del seconds
        done: T = asyncio.run(cast(Any, work))
        return done

    def evaluated(self, taskset: str, *versions: int) -> None:
        """Lets the run have evaluated these versions."""
        self.history.stages[STAGE].evaluations[taskset] = {
            version: Evaluation(
                version=version,
                stage="rft",
                taskset="math",
                seconds=1.0,
                metrics={},
                num_tasks=1,
                num_failed=0,
                num_runs=1,
                failed_count_zero=True,
            )
            for version in versions
        }

    def show(self) -> "FakeStudio":
        """Makes the pages see this run."""
        set_context(cast(StudioContext, self))
        return self


def stored_stage(**counts: int) -> query_pb2.ListStagesResponse:
    """The answer of ListStages with one stage that holds so many samples."""
    told = [query_pb2.StateCount(state="EXPERIENCE_STATE_READY", count=n) for n in counts.values()]
    return query_pb2.ListStagesResponse(stages=[query_pb2.StoredStage(key=KEY, counts=told)])


def said(page: Any) -> list[str]:
    """Returns all texts of a page, also those that are set as code or in a box."""
    return [*(part.value for part in page.text), *map(_plain, _bodies(page))]


def problems(page: Any) -> list[str]:
    """Returns the texts of the boxes that say what did not work."""
    return [_plain(body) for body in _bodies(page) if "trinity-bad" in body]


def _bodies(page: Any) -> list[str]:
    return [part.proto.body for part in page.get("html")]


def _plain(body: str) -> str:
    return html.unescape(TAG.sub("", CODE_TAG.sub("`", body)))
