"""The tab Change: nothing is changed before a second yes, and nothing at all without the flag."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.inspect.builders import record
from tests.unit.studio.fake_run import said
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.api.v1.query_pb2_grpc import (
    QueryServiceServicer,
    QueryServiceStub,
    add_QueryServiceServicer_to_server,
)
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import PLAINTEXT
from trinity.studio.changes import NOT_ALLOWED
from trinity.studio.connection import OpenRun, Phase, ServiceConnection, System
from trinity.studio.context import StudioContext, StudioOptions, ViewedRun, set_context
from trinity.studio.pages.common import StagePage

SCRIPT = """
from tests.unit.studio import test_changing_page as test
from trinity.studio.context import studio_context
from trinity.studio.pages.changing import show_changes

show_changes(test.a_page(studio_context()), test.chosen[0], test.conditions)
"""
EXPERIENCES = """
from tests.unit.studio import test_changing_page as test
from trinity.studio.context import studio_context
from trinity.studio.pages import experiences

experiences._show_stored(test.a_page(studio_context()))
"""
EXPERIMENT = "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f11"
KEY = buffer_pb2.StageKey(tenant="default", experiment_id=EXPERIMENT, stage="rft")
ONE, OTHER = (f"0f4a1f6e-6a4b-5d0e-9a53-6d6e7e1d3a1{digit}" for digit in "01")
viewed: list[ViewedRun] = []
chosen: list[str] = []
conditions: list[str] = []


def a_page(context: StudioContext) -> StagePage:
    return StagePage(context=context, viewed=viewed[0], stage=query_pb2.StoredStage(key=KEY))


@dataclass
class Recorder(QueryServiceServicer):
    """Stands for the buffer: keeps what it was asked for."""

    asked: list[query_pb2.ExcludeExperiencesRequest] = field(default_factory=list)
    given: list[query_pb2.GiveFeedbackRequest] = field(default_factory=list)
    turns: list[SessionTurn] | None = None
    """None as of a buffer that does not know the call."""

    async def ListExperiences(
        self, _: query_pb2.ListExperiencesRequest, __: object
    ) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        yield query_pb2.ListExperiencesResponse(experiences=[record()])

    async def GetExperience(
        self, _: query_pb2.GetExperienceRequest, __: object
    ) -> query_pb2.GetExperienceResponse:
        change = query_pb2.SampleChange(what="included", reason="*mine*", by="ann", unix_millis=1)
        return query_pb2.GetExperienceResponse(experience=record(), changes=[change])

    async def GetSession(
        self, _: query_pb2.GetSessionRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[query_pb2.GetSessionResponse]:
        if self.turns is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED)
        yield query_pb2.GetSessionResponse(turns=self.turns)

    async def ExcludeExperiences(
        self, request: query_pb2.ExcludeExperiencesRequest, _: object
    ) -> query_pb2.ExcludeExperiencesResponse:
        self.asked.append(request)
        return query_pb2.ExcludeExperiencesResponse(num_excluded=2, num_batched=1)

    async def GiveFeedback(
        self, request: query_pb2.GiveFeedbackRequest, _: object
    ) -> query_pb2.GiveFeedbackResponse:
        self.given.append(request)
        return query_pb2.GiveFeedbackResponse(num_set=1)


class Opened(ServiceConnection):
    """A connection to the recorder."""

    def use(self, opened: OpenRun) -> None:
        self._opened = opened
        self._set(Phase.OPEN)


@dataclass
class Page:
    """The tab as it was shown last."""

    recorder: Recorder
    context: StudioContext
    shown: AppTest = field(default_factory=lambda: AppTest.from_string(SCRIPT, default_timeout=60))

    def run(self) -> None:
        self.shown.run()
        assert not self.shown.exception

    def fill(self, what: str, reason: str, *, which: str = "This experience") -> None:
        self.run()
        self.shown.selectbox[0].set_value(what)
        self.shown.selectbox[1].set_value(which)
        self.shown.text_input[0].set_value(reason)
        self.press("Look what it would do")

    def press(self, label: str) -> None:
        next(button for button in self.shown.button if button.label == label).click()
        self.run()

    @property
    def buttons(self) -> list[str]:
        return [button.label for button in self.shown.button]

    @property
    def texts(self) -> str:
        return "\n".join(said(self.shown))


@pytest.fixture
def page() -> Iterator[Page]:
    context = StudioContext(StudioOptions(places=(), allows_changes=True))
    set_context(context)
    recorder, connection = Recorder(), Opened(Path("/nonexistent"))

    async def serve() -> grpc.aio.Server:
        server = grpc.aio.server()
        add_QueryServiceServicer_to_server(recorder, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = open_channel(f"127.0.0.1:{port}")
        opened = OpenRun(
            system=System(buffer="", synchronizer="", security=PLAINTEXT),
            buffer=BufferServiceStub(channel),
            queries=QueryServiceStub(channel),
            synchronizer=SynchronizerServiceStub(channel),
            tenant="default",
            label="run",
            experiment_id=EXPERIMENT,
            is_live=True,
        )
        connection.use(opened)
        return server

    server = context.wait_for(serve())
    viewed[:], chosen[:], conditions[:] = [ViewedRun(connection=connection)], [ONE], []
    yield Page(recorder, context)
    context.wait_for(server.stop(None))
    context.close()


def test_a_change_is_made_after_the_second_yes(page: Page) -> None:
    page.fill("Exclude from training", "leaked *answers*")
    assert [request.dry_run for request in page.recorder.asked] == [True]
    assert "2 experiences would be excluded from training." in page.texts
    assert "Reason: leaked *answers*" in page.texts
    page.press("Yes, do it")
    assert [request.dry_run for request in page.recorder.asked] == [True, False]
    done = page.recorder.asked[1]
    assert (list(done.filter.experience_ids), done.reason) == ([ONE], "leaked *answers*")
    assert "2 experiences excluded from training." in page.texts
    assert page.buttons == ["Look what it would do"]  # there is nothing left to confirm
    page.run()
    assert len(page.recorder.asked) == 2


def test_the_session_of_a_run_is_shown_with_its_conversation(page: Page) -> None:
    page.shown = AppTest.from_string(EXPERIENCES, default_timeout=60)
    page.shown.query_params["id"] = ONE
    page.run()
    assert not any(text.startswith("session: ") for text in said(page.shown))
    page.recorder.turns = [SessionTurn(id="1"), SessionTurn(id="2", parent_id="1")]
    page.run()
    assert "session: 2 turns, 1 path, 2 content is gone, reward 0.75" in page.texts


def test_a_no_changes_nothing(page: Page) -> None:
    page.fill("Exclude from training", "why")
    page.press("No")
    assert page.buttons == ["Look what it would do"]
    assert [request.dry_run for request in page.recorder.asked] == [True]


def test_the_question_is_about_the_experience_it_was_asked_at(page: Page) -> None:
    page.fill("Exclude from training", "why")
    assert "Yes, do it" in page.buttons
    chosen[:] = [OTHER]
    page.run()
    assert page.buttons == ["Look what it would do"]
    chosen[:] = [ONE]
    page.run()
    assert page.buttons == ["Look what it would do"]


def test_the_conditions_of_the_list_can_be_meant(page: Page) -> None:
    conditions[:] = ["reward=..0.5", "task=train:12"]
    page.fill("Exclude from training", "why", which="All that satisfy the conditions above")
    page.press("Yes, do it")
    meant = page.recorder.asked[1].filter
    assert (meant.reward_max, meant.taskset, meant.task_index) == (0.5, "train", 12)
    assert not meant.experience_ids


def test_without_a_reason_nothing_is_asked(page: Page) -> None:
    page.fill("Exclude from training", "  ")
    assert "Say why" in page.texts
    assert page.recorder.asked == []
    assert page.buttons == ["Look what it would do"]


def test_a_reward_is_a_number_for_one_experience(page: Page) -> None:
    conditions[:] = ["reward=..0.5"]
    page.fill("Give the reward that it waits for", "read by hand")
    assert "Give the reward as a number." in page.texts
    page.shown.number_input[0].set_value(0.75)
    page.shown.selectbox[1].set_value("All that satisfy the conditions above")
    page.press("Look what it would do")
    assert "A reward is given to one experience: choose one." in page.texts
    page.shown.selectbox[1].set_value("This experience")
    page.press("Look what it would do")
    assert page.recorder.given == []
    page.press("Yes, do it")
    [given] = page.recorder.given
    assert (given.feedback[0].experience_id, given.feedback[0].reward) == (ONE, 0.75)
    assert given.reason == "read by hand"


def test_without_the_flag_the_functions_behind_the_page_refuse(page: Page) -> None:
    """A page without the form is one thing; this holds for whatever reaches the functions."""
    page.context.options = StudioOptions(places=(), allows_changes=False)
    page.fill("Exclude from training", "why")
    assert NOT_ALLOWED in page.texts
    assert page.recorder.asked == []
    page.context.options = StudioOptions(places=(), allows_changes=True)
    page.fill("Exclude from training", "why")
    page.context.options = StudioOptions(places=(), allows_changes=False)
    page.press("Yes, do it")
    assert NOT_ALLOWED in page.texts
    assert [request.dry_run for request in page.recorder.asked] == [True]


@pytest.mark.parametrize("is_allowed", [False, True])
def test_the_page_has_the_form_with_the_flag_alone(page: Page, is_allowed: bool) -> None:
    page.context.options = StudioOptions(places=(), allows_changes=is_allowed)
    page.shown = AppTest.from_string(EXPERIENCES, default_timeout=60)
    page.shown.query_params["id"] = ONE
    page.run()
    assert ("Change" in [tab.label for tab in page.shown.tabs]) is is_allowed
    assert ("Look what it would do" in page.buttons) is is_allowed
    assert len(page.shown.tabs) == 4 + is_allowed
