"""Contexts name deployments; a command takes one, addresses, or a run of this machine."""

import stat
from pathlib import Path

import pytest

from trinity.cli.context import delete, list_contexts, set_context, use
from trinity.cli.places import named_place
from trinity.errors import UserError
from trinity.run import contexts
from trinity.run.places import Deployment
from trinity.runtime.security import credentials

SERVICES = {"synchronizer": "127.0.0.1:1", "buffer": "127.0.0.1:2"}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(contexts.VARIABLE, str(tmp_path / "folder" / "contexts.json"))
    monkeypatch.delenv(credentials.VARIABLE, raising=False)
    return tmp_path / "folder" / "contexts.json"


def deployment(**given: str) -> Deployment:
    place = named_place(**given)  # type: ignore[arg-type]
    assert isinstance(place, Deployment)
    return place


def test_a_context_is_kept_in_a_file_that_only_its_owner_reads(file: Path) -> None:
    set_context("lab", **SERVICES, token="secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = deployment(context="lab", experiment="sums")
    assert (found.synchronizer, found.buffer) == ("127.0.0.1:1", "127.0.0.1:2")
    assert found.experiment == "sums" and found.security.bearer == "secret"


def test_the_current_context_holds_for_commands_that_name_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_context("lab", **SERVICES)
    set_context("other", synchronizer="127.0.0.1:3", buffer="127.0.0.1:4")
    use("other")
    capsys.readouterr()
    list_contexts()
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == [" ", "*"]
    assert deployment().buffer == "127.0.0.1:4"
    assert named_place(job_dir=tmp_path) == tmp_path, "a named run comes first"
    use("-")
    assert named_place(job_dir=tmp_path) == tmp_path
    delete("other")
    with pytest.raises(UserError, match="there is no context 'other'"):
        use("other")


def test_mistakes_are_named(tmp_path: Path, file: Path) -> None:
    set_context("lab", **SERVICES)
    with pytest.raises(UserError, match=r"no context 'lob'.*lab"):
        named_place(context="lob")
    with pytest.raises(UserError, match="--context lab has addresses of its own"):
        named_place(context="lab", buffer="127.0.0.1:5")
    with pytest.raises(UserError, match="names a run of this machine"):
        named_place(context="lab", job_dir=tmp_path)
    with pytest.raises(UserError, match="refusing to speak to far:1 without TLS"):
        set_context("far", synchronizer="far:1", buffer="far:2")
    file.write_text("{")
    with pytest.raises(UserError, match=r"contexts\.json holds no contexts, mend or remove it"):
        named_place(context="lab")
