"""A configuration written from nothing in the page Configure, and its run until the curve rises."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.addition.prepare import prepare
from tests.integration.studio.browser.conftest import LiveStudio, Viewer

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]
NUM_STEPS = 16
NUM_TASKS = 256
NUM_CELLS = 3
START_SECONDS = 600.0
"""Until the run has read its file, on a machine that does other things as well."""
RUN_SECONDS = 600.0
END_SECONDS = 60.0
NAME = "digits"
STARTED = re.compile(r"process (\d+) runs it")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without training, and tasks for it."""
    root = tmp_path_factory.mktemp("material")
    prepare(root / "made", seed=5)
    rows = map(json.loads, (root / "made/data/train.jsonl").read_text().splitlines()[:NUM_TASKS])
    tasks = [{"prompt": row["question"], "response": row["answer"]} for row in rows]
    (root / "train.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return root


def fill(page: Any, values: Mapping[str, object]) -> None:
    """Writes values into fields by their keys, and waits until the YAML beside them has each."""
    for key, value in values.items():
        field = page.get_by_label(f"`{key}`", exact=True)
        field.fill(str(value))
        field.press("Enter" if field.get_attribute("role") == "combobox" else "Tab")
        end = key.rpartition(".")[2]
        page.locator("code", has_text=re.compile(rf"\b{end}: ")).first.wait_for()


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """Ends a started run, and waits until nothing of it is left."""
    started = psutil.Process(pid)
    try:
        yield
    finally:
        below = [started, *started.children(recursive=True)] if started.is_running() else []
        if started.is_running() and started.status() != psutil.STATUS_ZOMBIE:
            os.killpg(pid, signal.SIGINT)
        psutil.wait_procs(below, timeout=END_SECONDS)


def rewards(viewer: Viewer) -> dict[int, float]:
    """Follows the newest reward in the table of the page Run until the last step."""
    page, seen = viewer.page, {}
    page.get_by_text("Newest values as a table").click(timeout=RUN_SECONDS * 1000)
    cells = page.locator("tr.row", has_text="reward/mean").locator("td")
    cells.first.wait_for(timeout=RUN_SECONDS * 1000)
    until = time.monotonic() + RUN_SECONDS
    while NUM_STEPS not in seen and time.monotonic() < until:
        if (
            len(texts := cells.all_text_contents()) == NUM_CELLS
        ):  # there are none while the page is drawn again
            seen[int(texts[1])] = float(texts[2])
        page.wait_for_timeout(200)
    return seen


def test_a_configuration_is_written_from_nothing_and_its_curve_rises(
    viewer: Viewer, studio: LiveStudio, material: Path
) -> None:
    page = viewer.page
    viewer.open("configure")
    viewer.wait_until_drawn()
    fill(
        page,
        {
            "project": "written",
            "name": NAME,
            "model.model_path": material / "made/model",
            "checkpoint_root_dir": studio.root,
            "taskset.path": material / "train.jsonl",
            "buffer.total_steps": NUM_STEPS,
            "buffer.batch_size": 8,
            "algorithm.repeat_times": 8,
            "optimizer.lr": 0.001,
            "model.max_model_len": 32,
            "model.max_response_tokens": 6,
            "explorer_input.default_workflow_type": "simple_workflow",
            "explorer_input.default_reward_fn_type": "tests.e2e.rewards.DigitsReward",
        },
    )
    page.get_by_text("The configuration is right.").wait_for()
    page.get_by_role("button", name="Save and start the run").click()
    told = page.get_by_text(STARTED)
    told.wait_for()
    pid = STARTED.search(told.inner_text())
    assert pid is not None
    with ended(int(pid[1])):
        viewer.open("runs")
        row = page.locator("tr.choice", has_text=f"written/{NAME}")
        row.click(timeout=START_SECONDS * 1000)
        page.get_by_role("heading", level=1, name="Run", exact=True).wait_for()
        seen = rewards(viewer)
    first = [value for step, value in seen.items() if step <= NUM_STEPS // 3]
    last = [value for step, value in seen.items() if step > NUM_STEPS * 2 // 3]
    assert first and last, seen
    assert max(last) > min(first) + 0.1, seen
