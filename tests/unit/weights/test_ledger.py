"""Only what a run's trainer has announced is recognised as the run's weights."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trinity.weights.ledger import (
    KEY_FILE,
    LEDGER_FILE,
    LedgerEntry,
    LedgerError,
    LedgerKey,
    WeightsLedger,
)

ENTRY = LedgerEntry(
    directory="v4-1",
    version=4,
    incarnation=1,
    manifest_sha256="ab" * 32,
    weights_sha256="cd" * 32,
)


def ledger_of(run: Path, stage: str = "rft") -> WeightsLedger:
    return WeightsLedger(folder=run / "stages" / stage, stage=stage, key=LedgerKey.create(run))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ledger_of(tmp_path).write([ENTRY])
    assert ledger_of(tmp_path).read() == (ENTRY,)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.rglob(".*")] == []


def change_an_entry(run: Path) -> None:
    path = run / "stages/rft" / LEDGER_FILE
    path.write_text(path.read_text().replace("v4-1", "v9-1"))


def sign_with_another_key(run: Path) -> None:
    (run / "other").mkdir()
    other = ledger_of(run / "other")
    other.write([ENTRY])
    (run / "stages/rft" / LEDGER_FILE).write_bytes(other.path.read_bytes())


def take_another_stages(run: Path) -> None:
    other = ledger_of(run, "warmup")
    other.write([ENTRY])
    (run / "stages/rft" / LEDGER_FILE).write_bytes(other.path.read_bytes())


def cut(run: Path) -> None:
    path = run / "stages/rft" / LEDGER_FILE
    path.write_bytes(path.read_bytes()[:20])


def nest(run: Path) -> None:
    (run / "stages/rft" / LEDGER_FILE).write_text("[" * 100_000)


def drop_the_code(run: Path) -> None:
    path = run / "stages/rft" / LEDGER_FILE
    path.write_text(json.dumps({"content": json.loads(path.read_text())["content"]}))


def put_a_pipe_there(run: Path) -> None:
    path = run / "stages/rft" / LEDGER_FILE
    path.unlink()
    os.mkfifo(path)


def remove(run: Path) -> None:
    (run / "stages/rft" / LEDGER_FILE).unlink()


FORGERIES = (
    change_an_entry,
    sign_with_another_key,
    take_another_stages,
    cut,
    nest,
    drop_the_code,
    put_a_pipe_there,
    remove,
)


@pytest.mark.parametrize("forge", FORGERIES)
def test_another_ledger_is_refused(tmp_path: Path, forge: Callable[[Path], None]) -> None:
    ledger = ledger_of(tmp_path)
    ledger.write([ENTRY])
    forge(tmp_path)
    with pytest.raises(LedgerError, match=r"announced\.json"):
        ledger.read()


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        LedgerKey.read(tmp_path)


def test_a_key_that_somebody_put_there_is_refused(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    key = tmp_path / KEY_FILE
    key.rename(tmp_path / "moved")
    key.symlink_to(tmp_path / "moved")
    with pytest.raises(LedgerError, match="another user put it there"):
        LedgerKey.read(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    os.chown(tmp_path / KEY_FILE, 12345, -1)
    with pytest.raises(LedgerError, match="another user put it there"):
        LedgerKey.read(tmp_path)


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(LedgerError, match="is not a key"):
        LedgerKey.read(tmp_path)


def test_the_key_stays(tmp_path: Path) -> None:
    assert LedgerKey.create(tmp_path) == LedgerKey.create(tmp_path) == LedgerKey.read(tmp_path)
