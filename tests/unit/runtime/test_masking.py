"""Passwords in addresses are taken out of every log line."""

import io
import logging

import pytest

from trinity.runtime.logs import JsonFormatter, TextFormatter, redact_passwords

PASSWORD = "hunter2"
ADDRESS = f"postgresql://me:{PASSWORD}@db.example:5432/facts"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ADDRESS, "postgresql://me:***@db.example:5432/facts"),
        (f"nats://a:{PASSWORD}@x,nats://b:{PASSWORD}@y", "nats://a:***@x,nats://b:***@y"),
        (f"redis://:{PASSWORD}@cache", "redis://:***@cache"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("see https://example.org: it says a@b", "see https://example.org: it says a@b"),
        ("nothing", "nothing"),
    ],
)
def test_what_stands_between_user_and_host_is_not_shown(text: str, shown: str) -> None:
    assert redact_passwords(text) == shown


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter("buffer")])
def test_a_line_a_value_and_a_traceback_show_no_password(formatter: logging.Formatter) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(formatter)
    logger = logging.Logger("a library")
    logger.addHandler(handler)
    try:
        raise ConnectionError(f"cannot reach {ADDRESS}")
    except ConnectionError:
        logger.exception("lost %s", ADDRESS, extra={"place": ADDRESS})
    assert PASSWORD not in log.getvalue()
    assert log.getvalue().count("postgresql://me:***@db.example") == 3
