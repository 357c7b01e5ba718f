"""A live run that waits for rewards, Studio in front of it, and a Chromium that looks at it.

Chromium is Debian's package and is driven by Playwright; `make browser` installs both.
Where one is missing the tests are skipped, and say so.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import (
    CHROMIUM,
    DRAWN,
    StudioProcess,
    path_of,
    playwright_driver,
    start_chromium,
)
from tests.support.images import data_url, png
from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import model_free_stack
from trinity.run.launch.resume import store_plan

START_SECONDS = 120.0
DRAW_SECONDS = 120.0
"""Until a page is drawn, on a machine that does other things as well."""
MOST_LOOKS = 30
"""At a list that a run which has just begun will fill."""
HOSTILE = '<script>document.title="owned"</script>[a](http://evil.example)'
NUM_TASKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStudio:
    """Studio with a run to look at; each of its addresses lets one browser in."""

    studio: StudioProcess
    job_dir: Path
    root: Path
    """Runs that the page Configure starts belong below it."""


@dataclass(slots=True, kw_only=True)
class Viewer:
    """A browser page that has entered Studio, with every host that it asked for something."""

    page: Any
    """Of Playwright, which has no place in the environment of other tests."""
    origin: str
    run: str
    hosts: set[str]
    said: list[str]
    """Errors that the page's scripts logged."""

    def open(self, name: str, **query: str) -> None:
        """Opens a page of Studio by its address."""
        asked = "&".join(f"{key}={value}" for key, value in {"run": self.run, **query}.items())
        self.page.goto(f"{self.origin}/{path_of(name)}?{asked}")

    def first_row(self, **query: str) -> Any:
        """Opens the page Experiences until it has a row, and returns the newest one's."""
        rows = self.page.locator("tr.choice")
        for _ in range(MOST_LOOKS):
            self.open("experiences", **query)
            self.wait_until_drawn()
            if rows.count():
                break
            self.page.wait_for_timeout(1_000)
        rows.first.wait_for()
        return rows.first

    def wait_until_drawn(self) -> None:
        """Waits for a page that was opened."""
        self.page.get_by_role("heading", level=1).wait_for()
        self.page.wait_for_function(DRAWN)


def prompt(text: str) -> list[dict[str, Any]]:
    """A chat with an image."""
    image = {"url": data_url(png((9, 200, 9), (640, 480)))}
    parts = [{"type": "image_url", "image_url": image}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="package")
def live_run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run whose first step waits for rewards that a person gives."""
    del browser  # without one nothing is started
    root = tmp_path_factory.mktemp("browser")
    plan = experiment_plan(
        root,
        num_tasks=NUM_TASKS,
        model={"max_prompt_tokens": 256},
        buffer={
            "await_feedback": True,
            "explorer_input": {
                "default_workflow_type": "tests.support.model_free.later_reward.LaterReward",
                "taskset": {"format": {"image_key": "image"}},
            },
        },
    )
    rows = [{"prompt": prompt(f"{HOSTILE} {n}+{n}="), "response": "2"} for n in range(NUM_TASKS)]
    (root / "run.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)
    started, ended = threading.Event(), threading.Event()

    async def run() -> None:
        async with model_free_stack(plan.job_path) as stack:
            await start_experiment(stack.addresses.synchronizer, plan)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(START_SECONDS)
        yield plan.job_path
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="package")
def studio(live_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStudio]:
    """Studio, which may change experiences of the run, and looks for others below a folder."""
    root = tmp_path_factory.mktemp("started")
    started = StudioProcess.start(["--allow-changes", str(live_run), str(root)], root)
    yield LiveStudio(studio=started, job_dir=live_run, root=root)
    started.process.kill()
    started.process.communicate()


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium, or a skip that says what is missing."""
    try:
        driver = playwright_driver()
    except ImportError:
        pytest.skip("Playwright is missing: run `make browser`")
    if not CHROMIUM:
        pytest.skip("Chromium is missing: run `make browser` as root")
    with driver.sync_playwright() as playwright:
        started = start_chromium(playwright)
        yield started
        started.close()


@pytest.fixture
def viewer(studio: LiveStudio, browser: Any) -> Iterator[Viewer]:
    """A fresh browser context, on a laptop's screen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(DRAW_SECONDS * 1000)
    address = studio.studio.address()
    parts = urlsplit(address)
    seen = Viewer(
        page=page,
        origin=f"{parts.scheme}://{parts.netloc}",
        run=str(studio.job_dir),
        hosts=set(),
        said=[],
    )
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.on("websocket", lambda socket: seen.hosts.add(urlsplit(socket.url).netloc))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.goto(address)
    yield seen
    context.close()
