"""A service starts from its environment and refuses what it does not know."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from trinity.errors import UserError
from trinity.runtime.settings import ServiceSettings


class ExampleSettings(ServiceSettings):
    """Settings of a made-up service."""

    model_config = SettingsConfigDict(env_prefix="TRINITY_EXAMPLE_")

    dsn: str
    """A secret."""


def test_a_misspelt_variable_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_EXAMPLE_DSN", "x")
    monkeypatch.setenv("TRINITY_EXAMPLE_LISTN", "127.0.0.1:1")
    with pytest.raises(UserError, match="TRINITY_EXAMPLE_LISTN"):
        ExampleSettings.from_environment()


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(UserError, match="TRINITY_EXAMPLE_DSN"):
        ExampleSettings.from_environment()


def test_a_secret_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://x\n")
    monkeypatch.setenv("TRINITY_EXAMPLE_DSN_FILE", str(tmp_path / "dsn"))
    assert ExampleSettings.from_environment().dsn == "postgresql://x"


def test_an_unreadable_secret_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_EXAMPLE_DSN_FILE", "/nowhere/dsn")
    with pytest.raises(UserError, match="/nowhere/dsn"):
        ExampleSettings.from_environment()


def test_a_wrong_value_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_EXAMPLE_DSN", "hunter2")
    monkeypatch.setenv("TRINITY_EXAMPLE_DRAIN_SECONDS", "soon")
    with pytest.raises(UserError) as caught:
        ExampleSettings.from_environment()
    assert "TRINITY_EXAMPLE_DRAIN_SECONDS" in str(caught.value)
    assert "hunter2" not in str(caught.value)
