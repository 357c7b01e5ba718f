"""Services by address: what is wrong with them is said in one sentence, and visits stay apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import said
from trinity.errors import (
    Forbidden,
    NotFound,
    RpcError,
    TrinityError,
    Unauthenticated,
    Unavailable,
    UserError,
)
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.local.addresses import free_port
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.studio.connection import System
from trinity.studio.context import StudioContext, StudioOptions, ViewedRun, set_context
from trinity.studio.system import (
    answer_from,
    is_experiment_id,
    list_experiments,
    system_at,
)
from trinity.studio.visitors import Visitor

EXPERIMENT = "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f11"


def silent_system() -> System:
    """Nothing listens at its addresses."""
    return System(
        buffer=f"127.0.0.1:{free_port()}",
        synchronizer=f"127.0.0.1:{free_port()}",
        security=PLAINTEXT,
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unavailable("connection refused"), "does not answer (connection refused): check that it"),
        (Unauthenticated("the token has expired"), "does not accept the token"),
        (Forbidden("the token's scopes do not allow X"), "refuses (the token's scopes"),
        (NotFound("no such experiment"), "no such experiment"),
    ],
)
async def test_an_error_names_the_service_and_what_to_do(error: RpcError, words: str) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(TrinityError) as raised:
        await answer_from("buffer", "host:1", fail())
    assert words in str(raised.value)
    if not isinstance(error, NotFound):
        assert str(raised.value).startswith("The buffer at host:1 ")


async def test_a_service_that_does_not_answer_is_named() -> None:
    system = silent_system()
    with pytest.raises(Unavailable) as raised:
        await list_experiments(system)
    assert str(raised.value).startswith(
        f"The synchronizer at {system.synchronizer} does not answer ("
    )


def test_both_addresses_are_needed_and_plaintext_stays_on_this_machine(tmp_path: Path) -> None:
    def system(buffer: str, synchronizer: str, security: Credentials = PLAINTEXT) -> System | None:
        return system_at(buffer=buffer, synchronizer=synchronizer, security=security)

    assert system("", "") is None
    assert system("127.0.0.1:1", "localhost:2") is not None
    assert system("far:1", "far:2", Credentials(tmp_path)) is not None
    for buffer, synchronizer, words in (
        ("127.0.0.1:1", "", "--synchronizer is missing"),
        ("", "127.0.0.1:1", "--buffer is missing"),
        ("nowhere", "127.0.0.1:1", "'nowhere' is not host:port"),
        ("127.0.0.1:1", "far:2", "refusing to speak to far:2 without TLS and a token"),
    ):
        with pytest.raises(UserError, match=words):
            system(buffer, synchronizer)


def test_an_experiment_is_told_from_a_directory() -> None:
    assert is_experiment_id(EXPERIMENT)
    for other in ("/runs/a", "", EXPERIMENT.upper(), f"{EXPERIMENT}/..", EXPERIMENT[:-1]):
        assert not is_experiment_id(other)


@pytest.fixture
def context() -> Iterator[StudioContext]:
    """Studio with services that do not answer, and a run's directory."""
    made = StudioContext(StudioOptions(places=(), system=silent_system()))
    yield made
    made.close()


def show_to(context: StudioContext, visitor: Visitor) -> None:
    """Makes the next pages for this visitor."""
    context.visitor_now = lambda: visitor


def test_each_visit_has_its_own_view_and_its_own_token(context: StudioContext) -> None:
    """Whatever is kept for one must not reach another, even of the same name."""
    ann, bob = (Visitor(name="x", is_owner=False, token=token) for token in ("ann's", "bob's"))
    seen: dict[str, ViewedRun] = {}
    for visitor in (ann, bob, ann):
        show_to(context, visitor)
        system = context.system()
        assert system is not None
        assert system.security.bearer == visitor.token
        view = context.view_experiment(EXPERIMENT)
        assert seen.setdefault(visitor.key, view) is view
    assert seen[ann.key] is not seen[bob.key]


def test_a_token_opens_no_directory(context: StudioContext, tmp_path: Path) -> None:
    """Files have no tenants that Studio could tell apart."""
    context.options = StudioOptions(places=(tmp_path,), system=context.options.system)
    assert list(context.places) == [tmp_path]
    show_to(context, Visitor(name="ann", is_owner=False, token="t"))
    assert list(context.places) == []


def test_an_expired_visit_is_told_to_sign_in_again(context: StudioContext) -> None:
    context.visitor_now = lambda: None
    with pytest.raises(UserError, match="Your token has expired: load the page again"):
        context.system()


@pytest.mark.parametrize("page", ["runs", "run", "experiences"])
def test_a_page_says_which_service_does_not_answer_and_stays(
    context: StudioContext, page: str
) -> None:
    set_context(context)
    script = f"from trinity.studio.pages import {page}\n{page}.show()\n"
    shown = AppTest.from_string(script, default_timeout=60).run()
    assert not shown.exception
    [problem] = (text for text in said(shown) if "did not" in text or "does not" in text)
    assert problem.startswith("The synchronizer at 127.0.0.1:")


def test_the_run_of_a_directory_is_shown_beside_silent_services(
    context: StudioContext, tmp_path: Path
) -> None:
    (tmp_path / "p" / "n").mkdir(parents=True)
    (tmp_path / "p" / "n" / PLAN_FILE).write_text('{"label": "p/n", "stages": [{"name": "rft"}]}')
    context.options = StudioOptions(places=(tmp_path,), system=context.options.system)
    set_context(context)
    script = "from trinity.studio.pages import runs\nruns.show()\n"
    shown = AppTest.from_string(script, default_timeout=60).run()
    assert any("1 run" in str(text.value) for text in shown.text)
