"""Studio is an extra: without its packages the command says what to install."""

import importlib.util
from pathlib import Path

import pytest

from trinity.cli import studio as command
from trinity.errors import UserError

ROOT = Path(__file__).parents[3]


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "streamlit" else find_spec(name),
    )
    with pytest.raises(UserError) as caught:
        command.studio([], port=0)
    assert str(caught.value).startswith("Studio needs streamlit, which this environment")
    assert "have: run `trinity setup studio`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_with_them_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    command.require_extra()
