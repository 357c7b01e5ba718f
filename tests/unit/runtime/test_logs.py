"""Lines of users' code, of runners, and lines that come again."""

import asyncio
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.explorer.telemetry import RunnerNumbers, RunnerRouter, current_runner
from trinity.plugins import get_logger
from trinity.runtime import folded_log
from trinity.runtime.folded_log import FoldingHandler, folded
from trinity.runtime.logs import LibraryFilter, TextFormatter, as_fields
from trinity.runtime.threads import DaemonThreads

EXAMPLE = """
import logging
import sys
sys.path.insert(0, sys.argv[2])
from trinity.runtime.logs import configure_logging
configure_logging("explorer", sys.argv[1], "text")
from trinity.plugins import load_file, import_module
from pathlib import Path
load_file(Path(sys.argv[2]) / "own_part.py")
import_module("own_package_part", "a part")
logging.getLogger("httpx").info("library")
"""
PART = """
import logging
from trinity.utils.log import get_logger
import own_helper
get_logger().info("of get_logger")
get_logger("named").info("of a named one")
logging.getLogger(__name__).info("of the module")
logging.getLogger("any_name").info("of any name")
logging.getLogger("any_name").debug("for developers")
"""


class Lines(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record).partition(" ")[2])


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which is as it was afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def printed(level: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE, level, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    return done.stdout


def test_every_logger_of_a_users_file_is_written_at_the_level_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "own_part.py").write_text(PART)
    (tmp_path / "own_helper.py").write_text("import logging\nlogging.info('of a helper')\n")
    (tmp_path / "own_package_part.py").write_text(
        "import logging\nlogging.getLogger(__name__).info('of a dotted path')\n"
    )
    info = printed("INFO", tmp_path)
    for wanted in ("get_logger", "a named one", "the module", "any name", "a helper"):
        assert f"of {wanted}" in info, info
    assert "of a dotted path" in info
    assert "for developers" not in info
    debug = printed("DEBUG", tmp_path)
    assert "for developers" in debug
    warning = printed("WARNING", tmp_path)
    assert "of " not in warning


def test_a_library_is_written_from_warnings_on() -> None:
    """The control: without the filter, its lines below are written too."""
    wants = LibraryFilter().filter
    record = logging.makeLogRecord({"name": "httpx", "pathname": logging.__file__})
    record.levelno = logging.INFO
    assert not wants(record)
    record.levelno = logging.WARNING
    assert wants(record)
    record.levelno, record.pathname = logging.INFO, "/home/user/rewards.py"
    assert wants(record)


def test_repeated_lines_are_one_line_and_their_count() -> None:
    lines = Lines()
    handler = FoldingHandler(lines, seconds=60.0)
    logger = logging.Logger("of.this")
    logger.addHandler(handler)
    for number in range(100):
        logger.info("cold cache", extra={"server": "a"})
        logger.info("another", extra={"number": number % 2})
    logger.warning("cold cache", extra={"server": "a"})
    assert lines.lines == [
        "INFO of.this: cold cache server=a",
        "INFO of.this: another number=0",
        "INFO of.this: another number=1",
        "WARNING of.this: cold cache server=a",
    ]
    handler.flush()
    assert lines.lines[4:] == [
        "INFO of.this: cold cache server=a repeated=99",
        "INFO of.this: another number=0 repeated=49",
        "INFO of.this: another number=1 repeated=49",
    ]
    logger.info("cold cache", extra={"server": "a"})
    assert lines.lines[7:] == ["INFO of.this: cold cache server=a"]


def test_a_count_is_written_though_nothing_else_is_logged() -> None:
    lines, written = Lines(), threading.Event()

    class Told(Lines):
        def emit(self, record: logging.LogRecord) -> None:
            lines.emit(record)
            if "repeated" in vars(record):
                written.set()

    handler = FoldingHandler(Told(), seconds=0.05)
    logger = logging.Logger("of.this")
    logger.addHandler(handler)
    logger.info("cold cache")
    logger.info("cold cache")
    assert written.wait(10)
    assert lines.lines[-1] == "INFO of.this: cold cache repeated=1"
    handler.close()


def test_memory_of_different_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_log, "MAX_OPEN", 3)
    lines = Lines()
    logger = logging.Logger("of.this")
    logger.addHandler(FoldingHandler(lines, seconds=60.0))
    for _ in range(2):
        for number in range(4):
            logger.info("line", extra={"number": number})
    assert len(lines.lines) == 8
    assert not any("repeated" in line for line in lines.lines)


def test_the_variable_of_ray_shows_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    assert folded(lines) is lines
    monkeypatch.delenv("RAY_DEDUP_LOGS")
    assert isinstance(folded(lines), FoldingHandler)


async def test_lines_of_runs_are_in_the_file_of_their_runner(
    root: logging.Logger, tmp_path: Path
) -> None:
    lines = Lines()
    router = RunnerRouter(lines, tmp_path)
    router.setFormatter(TextFormatter())
    root.handlers[:] = [router]
    runners, threads = RunnerNumbers(2), DaemonThreads(name="workflow", max_threads=4)
    both_run, log = asyncio.Barrier(2), get_logger("envs.shop")

    async def run(name: str) -> None:
        with runners.running():
            await both_run.wait()
            log.info("on the loop of %s", name)
            await threads.run_in_thread(lambda: log.info("in a thread of %s", name))
            await asyncio.create_task(say(f"in a task of {name}"))
            logging.getLogger("services.explorer.rollout").warning("a run failed of %s", name)
            log.error("broken of %s", name)

    async def say(text: str) -> None:
        log.info(text)

    await asyncio.gather(run("first"), run("second"))
    log.info("outside of a run")
    router.close()
    for number, name in enumerate(("first", "second")):
        text = (tmp_path / f"explorer_runner_{number}.log").read_text()
        other = "second" if name == "first" else "first"
        assert f"on the loop of {name}" in text
        assert f"in a thread of {name}" in text
        assert f"in a task of {name}" in text
        assert f"a run failed of {name}" in text
        assert other not in text
    names = ("first", "second")
    told = [f"{what} of {name}" for what in ("a run failed", "broken") for name in names]
    texts = sorted(line.partition(": ")[2] for line in lines.lines)
    assert texts == sorted(["outside of a run", *told])
    assert current_runner() is None


def test_without_a_folder_a_line_names_its_runner(root: logging.Logger) -> None:
    lines = Lines()
    root.handlers[:] = [RunnerRouter(lines, None)]
    with RunnerNumbers(8).running():
        get_logger("shop").info("here")
    assert lines.lines == ["INFO trinity.plugin.shop: here runner=0"]


def test_a_run_takes_the_least_busy_runner() -> None:
    runners = RunnerNumbers(2)
    with runners.running() as first, runners.running() as second:
        with runners.running() as third:
            assert (first, second, third) == (0, 1, 0)
        with runners.running() as again:
            assert again == 0
    with runners.running() as last:
        assert last == 0


def test_runners_take_turns_as_a_search_through_all_would_have_it() -> None:
    runners, draws, counts = RunnerNumbers(5), random.Random(3), [0] * 5
    held: list[tuple[ExitStack, int]] = []
    for _ in range(400):
        if held and draws.random() < 0.45:
            stack, number = held.pop(draws.randrange(len(held)))
            stack.close()
            counts[number] -= 1
        else:
            stack = ExitStack()
            number = stack.enter_context(runners.running())
            assert number == min(range(5), key=lambda runner: (counts[runner], runner))
            counts[number] += 1
            held.append((stack, number))


def test_a_metric_with_the_name_of_a_field_is_written() -> None:
    assert as_fields({"message": 1.0, "actor/loss": 2.0}) == {
        "metric/message": 1.0,
        "actor/loss": 2.0,
    }
    logging.getLogger("of.this").info("ended", extra=as_fields({"name": 1.0, "args": 2.0}))
