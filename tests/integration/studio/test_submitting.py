"""The page Configure submits a run to real services by address, and they run it to its end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_stack
from tests.unit.studio.fake_run import said
from trinity.run.launch.resume import store_plan
from trinity.run.local.addresses import ServiceAddresses
from trinity.runtime.security.credentials import Credentials
from trinity.studio.connection import System
from trinity.studio.context import StudioContext, StudioOptions, set_context
from trinity.studio.runs import RunDirectoryState, RunEntry
from trinity.studio.system import list_experiments

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
SCRIPT = "from trinity.studio.pages import configure\nconfigure.show()\n"
PAGE_SECONDS = 240
RUN_SECONDS = 300.0


@contextmanager
def studio_of(addresses: ServiceAddresses, place: Path) -> Iterator[System]:
    """The owner's Studio with services by address, and runs below a directory."""
    system = System(
        buffer=addresses.buffer, synchronizer=addresses.synchronizer, security=Credentials()
    )
    context = StudioContext(StudioOptions(places=(place,), system=system))
    set_context(context)
    try:
        yield system
    finally:
        context.close()


def submit_copy(folder: Path) -> str:
    """Starts the form from the only run, and submits it; returns what the page says."""
    page = AppTest.from_string(SCRIPT, default_timeout=PAGE_SECONDS).run()
    next(box for box in page.selectbox if box.label == "Run").set_value(0).run()
    _press(page, "Use this run")
    path = next(field for field in page.text_input if field.label == "Save as")
    path.set_value(str(folder / "submitted.yaml"))
    _press(page, "Save and submit")
    return "\n".join(said(page))


def _press(page: AppTest, label: str) -> None:
    next(button for button in page.button if button.label == label).click().run()
    assert not page.exception


async def finished(system: System) -> RunEntry:
    """Waits until the services have ended the experiment."""
    async with asyncio.timeout(RUN_SECONDS):
        while True:
            for entry in await list_experiments(system):
                if entry.state is not RunDirectoryState.RUNNING:
                    return entry
            await asyncio.sleep(1)


async def test_a_run_that_studio_submits_is_run_by_the_services(tmp_path: Path) -> None:
    stored = experiment_plan(tmp_path / "before", num_tasks=4)
    stored.job_path.mkdir(parents=True)
    store_plan(stored)
    async with model_free_stack(tmp_path / "services") as stack:
        with studio_of(stack.addresses, tmp_path / "before") as system:
            told = await asyncio.to_thread(submit_copy, tmp_path)
            assert "The services run it now." in told
            entry = await finished(system)
    assert (entry.label, entry.state) == ("model-free/run-copy", RunDirectoryState.FINISHED)
