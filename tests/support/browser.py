"""Studio as a process, and the Chromium that looks at it.

Chromium is Debian's package and is driven by Playwright; `make browser` installs both.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

REPOSITORY = str(Path(__file__).parents[2])
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=\S+")
CHROMIUM = shutil.which("chromium") or ""
FOLDER_VARIABLE = "TRINITY_TEST_BROWSER"
"""Names the folder that holds Playwright, apart from the environment."""
PAGES = (
    "runs",
    "run",
    "experiences",
    "tasks",
    "evaluations",
    "step",
    "compare",
    "tasksets",
    "configure",
)
DRAWN = """() => !document.querySelector("[data-stale='true'], [data-testid='stStatusWidget']")
  && !document.querySelector("[data-testid='stSkeleton']")
  && document.querySelectorAll("[data-testid='stElementContainer']").length > 1"""
"""True when Streamlit has drawn the whole page."""


def path_of(name: str) -> str:
    """Returns the path of a page's address: the first page has none."""
    return "" if name == PAGES[0] else name


@dataclass(frozen=True, slots=True, kw_only=True)
class StudioProcess:
    """Studio as a process; each of its addresses lets one browser in."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, arguments: Sequence[str], folder: Path) -> Self:
        """Starts it on a free port, in a folder."""
        process = subprocess.Popen(
            [sys.executable, "-m", "trinity.cli.main", "studio", "--port", "0", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return cls(process=process)

    def address(self) -> str:
        """Returns the next address from its output."""
        assert self.process.stdout is not None
        while (found := ADDRESS.search(line := self.process.stdout.readline())) is None:
            assert line, "Studio has ended"
        return found[0]


def playwright_driver() -> Any:
    """Imports Playwright, which has no place in the environment of other tests.

    Raises: ImportError if it is missing.
    """
    if os.environ.get(FOLDER_VARIABLE):
        sys.path.append(os.environ[FOLDER_VARIABLE])
    from playwright import sync_api  # type: ignore[import-not-found]

    return sync_api


def start_chromium(playwright: Any) -> Any:
    """Returns a browser without a window."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    return playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
