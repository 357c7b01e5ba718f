"""The lifecycle of a service process: settings, logs, signals, graceful shutdown, exit code."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trinity.errors import UserError
from trinity.runtime.host_port import split_address
from trinity.runtime.interpreter import check_interpreter
from trinity.runtime.logs import configure_logging
from trinity.runtime.proxies import reach_loopback_directly
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.settings import ServiceSettings
from trinity.runtime.telemetry import lifecycle, metrics

logger = logging.getLogger(__name__)

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)
ServiceMain = Callable[[SettingsT, asyncio.Event], Awaitable[None]]

USER_ERROR = 2
CRASH = 1


def run_service(name: str, settings_type: type[SettingsT], main: ServiceMain[SettingsT]) -> int:
    """Runs `main(settings, stop)` until it returns; SIGTERM and SIGINT set `stop`.

    `main` returns when `stop` is set, after a graceful shutdown; an exception in it ends the
    process. Returns the exit code: 0 normally, 2 for a user's mistake, 1 for a crash.
    """
    reach_loopback_directly()
    try:
        check_interpreter()
        settings = settings_type.from_environment()
        configure_logging(name, settings.log_level, settings.log_format)
        _, port = split_address(settings.listen)
        lifecycle.start(f"trinity-{name}", port=port, scraped=bool(settings.metrics_listen))
        asyncio.run(_run(settings, main))
    except UserError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return USER_ERROR
    except Exception as error:
        if mistake := _user_error_in(error):
            sys.stderr.write(f"{name}: {mistake}\n")
            return USER_ERROR
        cause = _first_in(error)
        logger.exception("the service crashed")
        # The process's starter shows the log's last line.
        logger.critical("crashed", extra={"reason": f"{type(cause).__name__}: {cause}"})
        return CRASH
    finally:
        lifecycle.stop()
    logger.info("stopped")
    return 0


async def _run(settings: SettingsT, main: ServiceMain[SettingsT]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    security = Credentials.from_environment()
    if security.is_on and metrics.is_on():
        from trinity.runtime.security.certificates import expiry_times

        metrics.CREDENTIAL_EXPIRY.register_callback(lambda: expiry_times(security))
    async with contextlib.AsyncExitStack() as stack:
        if settings.metrics_listen:
            from trinity.runtime.telemetry.prometheus import serve_metrics

            await stack.enter_async_context(serve_metrics(settings.metrics_listen, security))
        await main(settings, stop)


def _first_in(error: BaseException) -> BaseException:
    """Returns the error itself if a task group has wrapped it."""
    return _first_in(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _user_error_in(error: BaseException) -> UserError | None:
    """Returns a user's mistake, also if a task group has wrapped it."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(
            (user_error for user_error in map(_user_error_in, error.exceptions) if user_error), None
        )
    return None
