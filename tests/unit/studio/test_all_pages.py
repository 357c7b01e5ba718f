"""All pages: what they claim before they know, and the keys of a configuration that they name."""

import ast
import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import FakeStudio, said, stored_stage
from tests.unit.studio.test_runs import PLAN, a_run
from tests.unit.subtests import as_subtests
from trinity.config.docs.catalog import all_keys
from trinity.config.sizing import stage_sizes
from trinity.run.local.given_run import TRUSTED_VARIABLE
from trinity.studio.connection import Phase, RunConnection
from trinity.studio.context import StudioContext, StudioOptions, set_context
from trinity.studio.pages import (
    common,
    compare,
    evaluations,
    experiences,
    run,
    scored,
    step,
    tasks,
    tasksets,
)

ROOT = Path(__file__).parents[3]
ADVISING = [*sorted((ROOT / "trinity/studio").rglob("*.py")), Path(stage_sizes.__file__)]
NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)(?=`|: |$)")
NO_KEYS = {"read", "submit"}
"""Scopes of tokens."""
KEYS = {key.plain_path for key in all_keys()}
ENDS = {path.rpartition(".")[2] for path in KEYS}


def named_keys(source: str) -> Iterator[str]:
    """Yields what the texts of a module set in backquotes as keys of a configuration."""
    nodes = list(ast.walk(ast.parse(source)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from NAMED.findall(node.value)


def unknown_keys(source: str) -> list[str]:
    known = KEYS | ENDS | NO_KEYS
    return [
        key for key in named_keys(source) if key not in known and not key.endswith((".py", "_"))
    ]


@as_subtests("path", ADVISING)
def test_every_key_that_a_page_names_exists(path: Path) -> None:
    assert unknown_keys(path.read_text()) == []


def test_keys_that_do_not_exist_are_found() -> None:
    """The control."""
    advice = "print(f'Set `explorer.eval_tasksets` or `trainer.rank_number: {n}`, `mode: x`')"
    assert unknown_keys(advice) == ["explorer.eval_tasksets", "trainer.rank_number"]
    assert sum(len(list(named_keys(path.read_text()))) for path in ADVISING) > 20


def by_link(page: ModuleType, parameter: str, job_dir: Path) -> Any:
    """A page that a browser opens first, by an address that names a run."""
    script = f"import {page.__name__} as page\npage.show()"
    app = AppTest.from_string(script, default_timeout=120)
    app.query_params[parameter] = str(job_dir)
    assert not app.run().exception
    return app


@pytest.mark.parametrize(
    "page",
    [run, experiences, tasks, evaluations, step, tasksets, compare],
    ids=lambda page: page.__name__,
)
def test_a_run_of_others_is_opened_once_a_person_says_so_on_any_page(
    tmp_path: Path, page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_dir = a_run(tmp_path)
    (job_dir / "config.json").write_text(json.dumps({"tenant": "default", **PLAN}))
    (job_dir / "infra/postgres/data").mkdir(parents=True)
    monkeypatch.delenv(TRUSTED_VARIABLE)
    opened = threading.Event()

    async def open_copy(connection: RunConnection, home: Path) -> None:
        assert connection.is_confirmed and home == job_dir
        connection.expire()
        opened.set()

    monkeypatch.setattr(RunConnection, "_with_stopped", open_copy)
    context = StudioContext(StudioOptions(places=(tmp_path,)))
    set_context(context)
    try:
        connection = context.view(job_dir).connection
        while connection.state.phase is Phase.OPENING:
            context.wait_for(asyncio.sleep(0))
        app = by_link(page, compare.COMPARED if page is compare else common.RUN, job_dir)
        assert "A database can hold code of others" in "".join(said(app))
        assert not opened.is_set(), "the control"
        next(button for button in app.button if button.label == "Open it").click().run()
        assert opened.wait(60)
    finally:
        context.close()


@pytest.mark.parametrize("page", [run, evaluations, tasks], ids=lambda page: page.__name__)
def test_a_page_claims_nothing_of_events_that_it_has_not_read(
    tmp_path: Path, page: ModuleType
) -> None:
    studio = FakeStudio(a_run(tmp_path), ListStages=stored_stage(ready=1)).show()
    studio.history.stages.clear()
    studio.history.is_read = False

    def shown() -> list[str]:
        return said(by_link(page, common.RUN, studio.places[0]))

    claims = {run.NO_CURVES, scored.DONE_FIRST, tasks.NO_TASKS}
    first = shown()
    assert common.READING in first
    assert not claims & set(first)
    studio.history.is_read = True
    if page is not tasks:  # which asks for scores then
        assert claims & set(shown()), "the control"
