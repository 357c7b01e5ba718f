"""Measures Studio: its first page, its memory with five viewers, and what it costs a run.

python -m benchmarks.studio.process [--seconds 60] [--viewers 5] [--starts 5] [--json FILE]

A stack without a model holds a run that waits for rewards. Studio looks at it, and Chromium at
Studio (`make browser`; TRINITY_TEST_BROWSER names Playwright's folder). The first page is that of a
browser that is open already and has nothing of Studio in its cache, from the moment when the
address is printed; each start has a Studio and a cache of its own, and the slowest counts. The cost
for the run is the processor time of its own processes while a page is open, less that of the same
time without a page, by turns: a share of one processor, which a run at work keeps busy at least.
"""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil

from benchmarks.processor_time import cpu_seconds
from benchmarks.table import PerformanceClaim, print_claims
from tests.support.browser import (
    DRAWN,
    StudioProcess,
    path_of,
    playwright_driver,
    start_chromium,
)
from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import model_free_stack
from trinity.launch.resume import store_plan

FIRST_PAGE_SECONDS = 2.0
MOST_MB = 300.0
MOST_SHARE = 0.01
NUM_TURNS = 2
"""Times with a page and without one, each."""
DRAW_MILLIS = 300_000
SAMPLE_SECONDS = 0.25
SCREEN = {"width": 1280, "height": 900}
PAGES = ("run", "experiences", "tasks", "run", "compare")
"""The pages of the viewers; the first viewer opens the first one."""
MIB = 1024 * 1024


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="with a page, and without")
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--starts", type=int, default=5, help="first pages that are measured")
    parser.add_argument("--json", type=Path, help="for the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="studio-process-") as folder:
        claims = measure(Path(folder), arguments.seconds, arguments.viewers, arguments.starts)
    print_claims(claims)
    if arguments.json is not None:
        told = {"claims": [claim.as_json() for claim in claims], "viewers": arguments.viewers}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPage:
    """The time of a first page; processor times change less with other load."""

    seconds: float
    studio_cpu_seconds: float
    """From the address on, as the next one."""
    browser_cpu_seconds: float


def measure(
    root: Path, seconds: float, num_viewers: int, num_starts: int
) -> list[PerformanceClaim]:
    """Returns the figures with their limits."""
    with waiting_run(root) as run, playwright_driver().sync_playwright() as playwright:
        own = psutil.Process().children(recursive=True)
        browser = start_chromium(playwright)
        stack = [process for process in own if is_of_the_run(process)]
        first = [first_page(browser, run, root) for _ in range(num_starts)]
        studio = StudioProcess.start([str(run)], root)
        address = studio.address()
        viewer = open_page(browser, address, address)
        share = live_share(viewer, address, run, stack, seconds)
        peak = peak_mb(browser, studio, run, num_viewers)
        studio.process.kill()
        studio.process.communicate()
        browser.close()
    for page in first:
        print(
            f"first page in {page.seconds:.2f} s, with {page.studio_cpu_seconds:.2f} processor "
            f"seconds of Studio and {page.browser_cpu_seconds:.2f} of the browser"
        )
    slowest = max(page.seconds for page in first)
    return [
        PerformanceClaim("first page after the address, s", slowest, FIRST_PAGE_SECONDS, "<="),
        PerformanceClaim("a live page, of a processor of the run", share, MOST_SHARE, "<="),
        PerformanceClaim(f"Studio with {num_viewers} viewers, MiB", peak, MOST_MB, "<="),
    ]


def first_page(browser: Any, run: Path, root: Path) -> FirstPage:
    """Measures the first page of a new Studio, in a browser without a cache."""
    context = browser.new_context(viewport=SCREEN)
    page = context.new_page()
    page.set_default_timeout(DRAW_MILLIS)
    studio = StudioProcess.start([str(run)], root)
    address = studio.address()
    begun = time.monotonic()
    own = psutil.Process(studio.process.pid)
    others = [
        process for process in psutil.Process().children(recursive=True) if is_browser(process)
    ]
    studio_before, browser_before = cpu_seconds([own]), cpu_seconds(others)
    page.goto(address)
    wait_until_drawn(page)
    found = FirstPage(
        seconds=time.monotonic() - begun,
        studio_cpu_seconds=cpu_seconds([own]) - studio_before,
        browser_cpu_seconds=cpu_seconds(others) - browser_before,
    )
    context.close()
    studio.process.kill()
    studio.process.communicate()
    return found


def is_browser(process: psutil.Process) -> bool:
    """Returns true for processes of Chromium."""
    try:
        return "chrom" in process.name()
    except psutil.NoSuchProcess:
        return False


def is_of_the_run(process: psutil.Process) -> bool:
    """Returns false for the browser's driver, and for a process that has ended."""
    try:
        return "playwright" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def waiting_run(root: Path) -> Iterator[Path]:
    """The directory of a run whose first step waits for rewards."""
    later = "tests.support.model_free.later_reward.LaterReward"
    plan = experiment_plan(
        root,
        num_tasks=16,
        model={"max_prompt_tokens": 256},
        buffer={"await_feedback": True, "explorer_input": {"default_workflow_type": later}},
    )
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        async with model_free_stack(plan.job_path) as stack:
            await start_experiment(stack.addresses.synchronizer, plan)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert started.wait(DRAW_MILLIS / 1000), "the run did not start"
        yield plan.job_path
    finally:
        ended.set()
        thread.join()


def open_page(browser: Any, address: str, first: str) -> Any:
    """Returns a page of a new viewer, drawn."""
    page = browser.new_context(viewport=SCREEN).new_page()
    page.set_default_timeout(DRAW_MILLIS)
    page.goto(address)
    if first != address:
        page.goto(first)
    wait_until_drawn(page)
    return page


def wait_until_drawn(page: Any) -> None:
    """Waits for the whole page."""
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_function(DRAWN)


def page_address(address: str, name: str, run: Path) -> str:
    """Returns the address of a page about the run."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}/{path_of(name)}?run={quote(str(run))}"


def live_share(
    page: Any, address: str, run: Path, stack: Sequence[psutil.Process], seconds: float
) -> float:
    """Returns the processor time that a page about the live run costs the run's processes."""
    used = {True: 0.0, False: 0.0}
    for is_open in (False, True) * NUM_TURNS:
        if is_open:
            page.goto(page_address(address, "run", run))
            page.get_by_text("Who did what").wait_for()
        else:
            page.goto("about:blank")
        before = cpu_seconds(stack)
        page.wait_for_timeout(seconds * 1000)
        used[is_open] += cpu_seconds(stack) - before
    return (used[True] - used[False]) / (NUM_TURNS * seconds)


def peak_mb(browser: Any, studio: StudioProcess, run: Path, num_viewers: int) -> float:
    """Returns the largest memory of Studio while viewers open pages, and stay."""
    peaks = [0.0]
    ended = threading.Event()

    def watch() -> None:
        process = psutil.Process(studio.process.pid)
        while not ended.wait(SAMPLE_SECONDS):
            peaks.append(process.memory_info().rss / MIB)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        pages = []
        for number in range(num_viewers):
            address = studio.address()
            name = PAGES[number % len(PAGES)]
            pages.append(open_page(browser, address, page_address(address, name, run)))
        for page in pages:
            page.reload()
            page.get_by_role("heading", level=1).wait_for()
    finally:
        ended.set()
        watcher.join()
    return max(peaks)


if __name__ == "__main__":
    main()
