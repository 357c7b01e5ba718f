"""Commands that look into a run do it by address, with TLS and a token of the right scope."""

import asyncio
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.integration.security.secured import Secured
from trinity.cli.curation import delete, exclude
from trinity.cli.export import export
from trinity.cli.feedback import feedback
from trinity.cli.lineage import lineage
from trinity.cli.status import status
from trinity.cli.view import view
from trinity.cli.why import why
from trinity.errors import Forbidden, TrinityError
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.credentials import TOKEN, VARIABLE

pytestmark = pytest.mark.asyncio(loop_scope="package")

Command = Callable[..., None]
READING: dict[str, Callable[[Path], Command]] = {
    "status": lambda _: status,
    "why": lambda _: why,
    "view": lambda _: view,
    "lineage": lambda _: partial(lineage, 1),
    "export": lambda folder: partial(export, folder / "samples.parquet"),
}
CHANGING: dict[str, Callable[[Path], Command]] = {
    "exclude": lambda _: partial(exclude, ["reward=5"], "a test"),
    "delete": lambda _: partial(delete, ["reward=5"], "a test"),
    "feedback": lambda folder: partial(feedback, str(folder / "rewards.jsonl")),
}


@pytest.fixture
def addresses(secured: Secured) -> dict[str, str]:
    at = secured.stack.addresses
    return {"buffer": at.buffer, "synchronizer": at.synchronizer, "experiment": secured.ended.id}


def use_scopes(
    secured: Secured, folder: Path, monkeypatch: pytest.MonkeyPatch, *scopes: Scope
) -> None:
    security = folder / "security"
    shutil.copytree(secured.security_root / "operator", security)
    (security / TOKEN).unlink(missing_ok=True)
    (security / TOKEN).write_text(secured.token(scopes=scopes))
    monkeypatch.setenv(VARIABLE, str(security))


@pytest.mark.parametrize("name", READING)
async def test_a_token_that_reads_suffices_to_look(
    secured: Secured,
    addresses: dict[str, Any],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_scopes(secured, tmp_path, monkeypatch, Scope.READ)
    await asyncio.to_thread(READING[name](tmp_path), **addresses)
    said = capsys.readouterr().out
    assert said
    if name == "export":
        assert pyarrow.parquet.read_table(tmp_path / "samples.parquet").num_rows
    if name in ("status", "why"):
        assert secured.ended.label in said


@pytest.mark.parametrize("name", CHANGING)
async def test_a_change_needs_the_scope_for_it(
    secured: Secured,
    addresses: dict[str, Any],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = {"id": "00000000-0000-0000-0000-000000000000", "reward": 1.0}
    (tmp_path / "rewards.jsonl").write_text(json.dumps(unknown) + "\n")
    use_scopes(secured, tmp_path, monkeypatch, Scope.READ)
    with pytest.raises(Forbidden):
        await asyncio.to_thread(CHANGING[name](tmp_path), **addresses)
    use_scopes(secured, tmp_path / "steering", monkeypatch, Scope.READ, Scope.STEER)
    try:
        await asyncio.to_thread(CHANGING[name](tmp_path), **addresses)
    except TrinityError as error:  # nothing of the run awaits a reward
        assert name == "feedback" and "1 rewards are refused" in str(error)
    else:
        assert capsys.readouterr().out.startswith("0 samples would be")
