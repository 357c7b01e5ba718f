"""Every page of a run that has ended, opened by a direct link in a Studio that has just started."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from pydantic import JsonValue

from tests.integration.studio.browser.conftest import DRAW_SECONDS, START_SECONDS
from tests.support.browser import DRAWN, PAGES, StudioProcess, path_of
from tests.support.model_free.experiment import (
    experiment_plan,
    start_experiment,
    wait_until_ended,
)
from tests.support.model_free.stack import model_free_stack
from trinity.run.launch.resume import store_plan
from trinity.studio.pages import experiences, run, scored, step, tasks, tasksets

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
LOOK_MILLIS = 100
CLAIMS = (
    run.NO_CURVES,
    scored.DONE_FIRST.partition("`")[0],
    tasks.NO_TASKS,
    experiences.NONE_YET,
    step.NO_STEP,
    tasksets.NO_TASKSETS.partition(".")[0],
)
"""Sentences that are untrue of this run."""
ROWS, CHART = "tr.row", "[data-testid='stVegaLiteChart'] :is(canvas, svg)"
SHOWN: Mapping[str, str] = {
    "run": CHART,
    "tasks": "text=never solved",
    "evaluations": "text=mean score",
    "configure": "code",
}
"""What each page shows of the run, without a click; the others have rows."""


@pytest.fixture(scope="module")
def ended_run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with two steps and evaluations."""
    del browser  # without one nothing is started
    root = tmp_path_factory.mktemp("ended")
    held_out: JsonValue = {"name": "held_out", "path": str(root / "run.jsonl")}
    plan = experiment_plan(
        root,
        num_tasks=8,
        buffer={"total_steps": 2, "explorer_input": {"eval_tasksets": [held_out]}},
        explorer={"eval_on_startup": True, "eval_interval": 1},
    )
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)

    async def run_it() -> None:
        async with model_free_stack(plan.job_path) as stack, asyncio.timeout(START_SECONDS):
            experiment = await start_experiment(stack.addresses.synchronizer, plan)
            await wait_until_ended(stack.addresses.synchronizer, experiment.id)

    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop in this one
        thread.submit(asyncio.run, run_it()).result()
    return plan.job_path


@pytest.fixture
def cold(ended_run: Path, browser: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A browser page that has entered a Studio which has opened no run, and its origin."""
    studio = StudioProcess.start([str(ended_run)], tmp_path)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.set_default_timeout(DRAW_SECONDS * 1000)
        address = studio.address()
        page.goto(address)
        yield page, "{0.scheme}://{0.netloc}".format(urlsplit(address))
    finally:
        context.close()
        studio.process.kill()
        studio.process.communicate()


@pytest.mark.parametrize("name", PAGES)
def test_a_direct_link_shows_what_there_is_and_claims_nothing_else(
    ended_run: Path, cold: tuple[Any, str], name: str
) -> None:
    page, origin = cold
    page.goto(f"{origin}/{path_of(name)}?run={quote(str(ended_run))}")
    wanted = page.locator(SHOWN.get(name, ROWS)).first
    for _ in range(int(DRAW_SECONDS * 1000 / LOOK_MILLIS)):
        text = page.locator("body").inner_text()
        assert not [claim for claim in CLAIMS if claim in text]
        if wanted.count() and wanted.is_visible():
            break
        page.wait_for_timeout(LOOK_MILLIS)
    wanted.wait_for()
    page.wait_for_function(DRAWN)
    assert page.locator("[data-testid=stException]").count() == 0
