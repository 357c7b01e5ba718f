"""`trinity setup hub`: what is wrong is said before anything is installed."""

from pathlib import Path

import pytest

from tests.support.stand_in_hub import make_hub
from trinity.cli.first_steps import setup
from trinity.errors import UserError
from trinity.user_code.hubs.place import HUBS, HUBS_VARIABLE, hub_lock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HUBS_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("given", [("hub", None), ("hub", "verifierz"), ("cpu", "verifiers")])
def test_a_hub_has_a_name_and_nothing_else_has_one(given: tuple[str, str | None]) -> None:
    with pytest.raises(UserError, match="takes one of verifiers, openenv, and the others no name"):
        setup(*given)


def test_a_folder_that_holds_something_else_stays(folder: Path) -> None:
    (folder / "openenv").mkdir()
    (folder / "openenv" / "notes").write_text("mine")
    with pytest.raises(UserError, match=f"holds something else.*{HUBS_VARIABLE}"):
        setup("hub", "openenv")
    assert (folder / "openenv" / "notes").read_text() == "mine"


def test_an_environment_of_this_release_is_not_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_hub(folder, "verifiers")
    setup("hub", "verifiers")
    assert "is ready; `" in capsys.readouterr().out


def test_every_hub_has_a_lock_with_hashes() -> None:
    for hub in HUBS:
        text = hub_lock(hub).read_text()
        assert f"\n{hub}==" in text and text.count("--hash=") > text.count("==")
