"""Pictures of every page of Studio, from a run that has ended.

python -m tests.support.studio_screenshots checkpoints/examples/addition --to docs/images
python -m tests.support.studio_screenshots checkpoints/examples/agent --to docs/images --session ID

The run must lie below the folder `checkpoints/`; the paths that pages show stand below it. Needs
what `make browser` installs (TRINITY_TEST_BROWSER names its folder).
"""

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from PIL import Image

from tests.support.browser import (
    DRAWN,
    PAGES,
    StudioProcess,
    path_of,
    playwright_driver,
    start_chromium,
)

SCREEN = {"width": 1280, "height": 900}
COLORS = 96
"""Of a picture: texts and lines stay sharp, and files small."""
SETTLE_MILLIS = 2_000
NUM_STILL = 2
"""Looks at a page that must find nothing in motion."""
ROWS = "tr.row"
AWAITED = {
    "runs": ROWS,
    "run": "[data-testid='stVegaLiteChart'] canvas, [data-testid='stVegaLiteChart'] svg",
    "experiences": ROWS,
    "tasks": ROWS,
    "evaluations": ROWS,
    "step": ROWS,
    "compare": ROWS,
    "tasksets": ROWS,
    "configure": "code",
}
"""What a page shows once its data is there."""
CHOSEN = {"experiences": ".token", "tasks": ROWS, "evaluations": ROWS, "tasksets": ROWS}
"""What a page shows after its first row was chosen."""
SESSION = "session"
"""The name of a picture that shows the tree of a session."""
OPEN_MILLIS = 240_000
SCHEMES = ("light", "dark")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The pages of a run, and a sample that is chosen in the address."""

    run: Path
    pages: Sequence[str]
    sample: str


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="directory of a run that has ended")
    parser.add_argument("--to", type=Path, required=True, help="folder of the light pictures")
    parser.add_argument("--dark-to", type=Path, help="folder of the dark ones, to look at")
    parser.add_argument("--pages", nargs="*", choices=PAGES, default=PAGES)
    parser.add_argument("--session", default="", help="only the tree of this sample's session")
    arguments = parser.parse_args()
    folders = {"light": arguments.to, "dark": arguments.dark_to}
    run = arguments.run.resolve()
    wanted = Wanted(run, [SESSION] if arguments.session else arguments.pages, arguments.session)
    with studio_of(run.parents[1]) as studio, chromium() as browser:
        for scheme in SCHEMES:
            if folders[scheme] is not None:
                take(browser, studio.address(), wanted, folders[scheme], scheme)


@contextmanager
def studio_of(root: Path) -> Iterator[StudioProcess]:
    """Studio over all runs below a folder."""
    started = StudioProcess.start([str(root)], root)
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.communicate()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    with playwright_driver().sync_playwright() as playwright:
        started = start_chromium(playwright)
        yield started
        started.close()


def take(browser: Any, address: str, wanted: Wanted, folder: Path, scheme: str) -> None:
    """Opens each page, brings it to what it is for, and stores its picture."""
    folder.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport=SCREEN, color_scheme=scheme)
    page.set_default_timeout(OPEN_MILLIS)
    page.goto(address)
    parts = urlsplit(address)
    for name in wanted.pages:
        path = path_of("experiences" if name == SESSION else name)
        query = f"run={quote(str(wanted.run))}&id={wanted.sample}"
        page.goto(f"{parts.scheme}://{parts.netloc}/{path}?{query}")
        page.get_by_role("heading", level=1).wait_for()
        wait_until_drawn(page)
        bring(page, name)
        picture = folder / f"studio_{name}.png"
        store(page.screenshot(), picture)
        sys.stdout.write(f"{picture}: {picture.stat().st_size:,} bytes\n")
    page.close()


def wait_until_drawn(page: Any) -> None:
    """Waits for the run's services, the page and its charts, until nothing changes any more."""
    page.get_by_text("its database is being opened").wait_for(state="hidden")
    for _ in range(NUM_STILL):
        page.wait_for_timeout(SETTLE_MILLIS)
        page.wait_for_function(DRAWN)


def bring(page: Any, name: str) -> None:
    """Chooses what a page is for, and waits for what it shows then."""
    if name in AWAITED:
        page.locator(AWAITED[name]).first.wait_for()
    if name == "compare":
        for row in range(min(2, page.locator("tr.choice").count())):
            page.locator("tr.choice").nth(row).click()
            wait_until_drawn(page)
    elif name == SESSION:
        page.get_by_role("tab", name="Conversation").click()
        page.locator("td.tree").first.wait_for()
        heading = page.get_by_role("heading", name="Experience", exact=True)
        heading.evaluate("element => element.scrollIntoView({block: 'start'})")
        wait_until_drawn(page)
    elif name in CHOSEN:
        page.locator("tr.choice").first.click()
        page.locator(CHOSEN[name]).first.wait_for()
        wait_until_drawn(page)


def store(picture: bytes, path: Path) -> None:
    """Writes a small PNG."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
