"""Ctrl-C pressed again when everything has stopped."""

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from trinity.cli.experiment import follow_run
from trinity.run.launch.run import RunInterrupted


@pytest.mark.parametrize("error", [RunInterrupted, KeyboardInterrupt])
def test_however_often_it_is_pressed_the_way_on_is_told(
    error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    async def stop() -> None:
        raise error

    def pressed_again() -> None:
        signal.raise_signal(signal.SIGINT)

    reporter = SimpleNamespace(close=only_once(pressed_again))
    run: Any = SimpleNamespace(reporter=reporter, run_to_end=stop)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(typer.Exit) as ended:
        follow_run(run, "trinity run --config mine.yaml")
    assert ended.value.exit_code == 130
    assert capsys.readouterr().out == (
        "stopped gracefully; resume with:\n  trinity run --config mine.yaml\n"
    )
    assert signal.getsignal(signal.SIGINT) == before


def only_once(press: Callable[[], None]) -> Callable[[], None]:
    """Returns a `close` that presses at its first call, as a person who is impatient does."""
    presses = iter([press])
    return lambda: next(presses, lambda: None)()
