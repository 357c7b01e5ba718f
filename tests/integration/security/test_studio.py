"""Studio looks at secured services with its visitors' tokens, and sees what these may see."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from tests.integration.security.secured import STEPS, Secured
from trinity.errors import TrinityError, UserError
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.remote import gather_by_address, gather_from_services
from trinity.run.diagnosis.snapshot import SystemSnapshot
from trinity.run.places import Deployment
from trinity.runtime.security.authorization import EVERY_TENANT, Scope
from trinity.runtime.security.credentials import Credentials
from trinity.studio.connection import Phase, System, stages_of
from trinity.studio.context import StudioContext, StudioOptions, members_of
from trinity.studio.experiences import list_experiences
from trinity.studio.runs import RunDirectoryState
from trinity.studio.system import describe_experiment, list_experiments
from trinity.studio.visitors import Visitor

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]
PATIENCE_SECONDS = 20.0


def system_of(secured: Secured, token: str) -> System:
    """The stack as Studio in a deployment sees it, with certificates and a visitor's token."""
    at = secured.stack.addresses
    return System(
        buffer=at.buffer,
        synchronizer=at.synchronizer,
        security=Credentials(secured.security_root / "studio").for_bearer(token),
    )


async def test_tenants_see_their_own(secured: Secured) -> None:
    for tenant, ids in (
        ("default", [secured.ended.id]),
        (EVERY_TENANT, [secured.ended.id]),
        ("another", []),
    ):
        system = system_of(secured, secured.token(tenant=tenant, scopes=[Scope.READ]))
        assert [entry.experiment_id for entry in await list_experiments(system)] == ids
    mine = system_of(secured, secured.token(scopes=[Scope.READ]))
    entry = await describe_experiment(mine, secured.ended.id)
    assert (entry.state, entry.step, entry.tenant) == (RunDirectoryState.FINISHED, STEPS, "default")
    theirs = system_of(secured, secured.token(tenant="another", scopes=[Scope.READ]))
    with pytest.raises(TrinityError) as refused:
        await describe_experiment(theirs, secured.ended.id)
    with pytest.raises(TrinityError) as unknown:
        await describe_experiment(theirs, "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f11")
    assert type(refused.value) is type(unknown.value)  # nothing tells what others have


async def test_a_token_without_rights_gets_one_sentence(secured: Secured) -> None:
    system = system_of(secured, secured.token(scopes=[Scope.SUBMIT]))
    with pytest.raises(UserError) as refused:
        await list_experiments(system)
    said = str(refused.value)
    assert said.startswith(f"The synchronizer at {system.synchronizer} refuses (the token's scopes")
    assert "trinity token --scope read" in said


@pytest.fixture
def context(secured: Secured) -> Iterator[StudioContext]:
    token = secured.token(scopes=[Scope.READ])
    made = StudioContext(
        StudioOptions(places=(), system=system_of(secured, "")),
        visitor_now=lambda: Visitor(name="ann", is_owner=False, token=token),
    )
    yield made
    made.close()


async def test_an_experiment_is_followed_by_its_address(
    secured: Secured, context: StudioContext
) -> None:
    viewed = context.view_experiment(secured.ended.id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while viewed.connection.opened is None or not viewed.history.stages.get("rft"):
            assert viewed.connection.state.phase is not Phase.FAILED, viewed.connection.state
            await asyncio.sleep(0.05)
        while viewed.history.stages["rft"].last_step < STEPS:  # noqa: ASYNC110  # a thread's
            await asyncio.sleep(0.05)
    opened = viewed.connection.opened
    assert opened is not None
    assert (opened.label, opened.is_live) == (secured.ended.label, False)

    def look() -> tuple[int, int, int]:
        stages = context.wait_for(stages_of(opened))
        page = context.wait_for(list_experiences(opened, stages[0].key, [], page_rows=50))
        return len(stages), len(page.rows), len(context.wait_for(members_of(opened))[0])

    num_stages, num_rows, num_members = await asyncio.to_thread(look)
    assert num_stages == 1
    assert num_rows > 0
    assert num_members > 0


async def test_what_holds_a_run_up_is_asked_by_address(secured: Secured) -> None:
    system = system_of(secured, secured.token(scopes=[Scope.READ]))

    async def verdict(synchronizer: str) -> str:
        snapshot = await gather_by_address(
            synchronizer=synchronizer,
            buffer=system.buffer,
            security=system.security,
            experiment_id=secured.ended.id,
            tenant="default",
        )
        return diagnose(snapshot).text

    assert await verdict(system.synchronizer) == f"{secured.ended.label} is finished."
    assert "127.0.0.1:1 refuses connections" in await verdict("127.0.0.1:1")


async def test_the_command_line_finds_the_experiment_there_itself(secured: Secured) -> None:
    def ask(token: str) -> Awaitable[SystemSnapshot]:
        system = system_of(secured, token)
        return gather_from_services(
            Deployment(
                synchronizer=system.synchronizer, buffer=system.buffer, security=system.security
            )
        )

    mine = diagnose(await ask(secured.token(scopes=[Scope.READ])))
    assert mine.text == f"{secured.ended.label} is finished."
    theirs = diagnose(await ask(secured.token(tenant="another", scopes=[Scope.READ])))
    assert theirs.text == "No experiment has been started."
    with pytest.raises(UserError, match=r"refuses .*trinity token --scope read"):
        await ask(secured.token(scopes=[Scope.SUBMIT]))


async def test_the_files_of_an_experiment_count_only_below_given_places(
    secured: Secured, tmp_path: Path
) -> None:
    """A tenant writes its plan, and could name the directory of another one there."""
    token = secured.token(scopes=[Scope.READ])
    for places, directory in (
        ((), Path("/nonexistent")),
        ((tmp_path,), Path("/nonexistent")),
        ((secured.job_dir.parent,), secured.job_dir.resolve()),
    ):
        made = StudioContext(StudioOptions(places=places, system=system_of(secured, token)))
        try:
            connection = made.view_experiment(secured.ended.id).connection
            async with asyncio.timeout(PATIENCE_SECONDS):
                while connection.opened is None:  # noqa: ASYNC110  # a thread's
                    await asyncio.sleep(0.05)
            assert connection.job_dir == directory
        finally:
            await asyncio.to_thread(made.close)
