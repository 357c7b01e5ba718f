"""Serves Studio's pages: Streamlit under uvicorn, behind the gate."""

import asyncio
import importlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.starlette import App
from streamlit.web import bootstrap

from trinity.runtime.host_port import join_address
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.http.server import HttpServer
from trinity.runtime.security.credentials import Credentials
from trinity.studio.context import StudioContext, StudioOptions, set_context
from trinity.studio.frames import MAX_FRAME_BYTES, VALUE_LOGGERS, OneLineOfValues
from trinity.studio.frontend import Frontend
from trinity.studio.gate import TOKEN_PARAMETER, Admission, Gate, Site
from trinity.studio.listening import Listening
from trinity.studio.visitors import Visitor

SCRIPT = Path(__file__).parent / "script" / "app.py"
"""In a separate folder, because Streamlit takes the files of a sibling folder `pages` for pages."""
FIRST_PAGE = "trinity.studio.pages.runs"
"""The module of the page that a browser sees first."""
HEADING_SIZES = ["1.5rem", "1.25rem", "1.125rem"]
"""Set for each theme: a custom theme would be light in browsers that ask for a dark one."""
OPTIONS: Mapping[str, bool | int | str | list[str]] = {
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",  # errors quote users' data, and would be read as Markdown
    "client.showErrorLinks": False,
    "client.toolbarMode": "minimal",
    "global.disableWidgetStateDuplicationWarning": True,
    "logger.enableRich": False,  # it prints tracebacks past all loggers
    "logger.level": "warning",
    "runner.magicEnabled": False,
    "server.enableAgentApi": False,
    "server.enableStaticServing": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 64,
    "server.showEmailPrompt": False,
    "theme.dark.headingFontSizes": HEADING_SIZES,
    "theme.dark.primaryColor": "#3aa796",
    "theme.light.headingFontSizes": HEADING_SIZES,
    "theme.light.primaryColor": "#19796d",
}
"""They precede Streamlit's own configuration files, which are the user's."""
GRACE_SECONDS = 2
"""Time that open connections get at the end; a browser never closes its websocket by itself."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An open port with the gate behind it."""

    port: int
    listening: Listening
    admission: Admission
    site: Site

    def address(self, token: str) -> str:
        """Returns the address that lets a browser of this machine in once."""
        place = join_address(self.listening.host, self.port)
        return f"http://{place}/?{TOKEN_PARAMETER}={token}"

    def visitor_now(self) -> Visitor | None:
        """Returns the visitor whose page Streamlit makes in this thread."""
        return self.admission.visitor(st.context.cookies.get(self.site.cookie_name, ""))


def serve(
    options: StudioOptions,
    listening: Listening,
    *,
    security: Credentials,
    say: Callable[[str], None],
) -> None:
    """Serves until the process is interrupted; `say` gets the lines for the terminal.

    Raises: UserError when the port is taken, or a file of certificates or keys cannot be read.
    """
    keys = security.token_keys() if listening.is_secure else None
    names = listening.names()
    listener = listening.open()
    port = listener.getsockname()[1]
    admission = Admission(
        announce=lambda token: say(f"another browser: {served.address(token)}"),
        keys=keys,
        needs_all_tenants=options.system is not None and not options.system.security.is_on,
    )
    site = Site(cookie_name=f"trinity-studio-{port}", names=names, is_secure=listening.is_secure)
    served = Served(port=port, listening=listening, admission=admission, site=site)
    skip_foreign_components()
    _set_streamlit_options(port, listening.host, [*LOOPBACK_NAMES, *sorted(names)])
    context = StudioContext(options, visitor_now=served.visitor_now)
    set_context(context)
    gate = Middleware(
        Gate,
        admission=admission,
        site=site,
        shares=context.shares,
        allows_changes=options.allows_changes,
    )
    app = App(SCRIPT, middleware=[gate, Middleware(Frontend)])
    for line in _greeting(served):
        say(line)
    # Meanwhile the browser loads its own scripts.
    threading.Thread(target=importlib.import_module, args=(FIRST_PAGE,), daemon=True).start()
    try:
        asyncio.run(_serve_until_interrupted(app, listening, listener))
    finally:
        context.close()


async def _serve_until_interrupted(app: App, listening: Listening, listener: socket.socket) -> None:
    table = ConnectionTable(HttpLimits.from_open_files())
    server = HttpServer(app, table=table, max_frame_bytes=MAX_FRAME_BYTES)
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    await server.start(listener, listening.tls_context())
    await interrupted.wait()
    await server.stop(GRACE_SECONDS)


def skip_foreign_components() -> None:
    """Keeps Streamlit from reading the description of each installed package at its start.

    It looks for components there, for 0.4 seconds with our packages; pages have their own.
    """

    def find_nothing(_: BidiComponentManager, **__: object) -> None:
        """Takes the place of the search."""

    BidiComponentManager.discover_and_register_components = find_nothing


def _greeting(served: Served) -> tuple[str, ...]:
    if not served.listening.is_secure:
        return (
            f"Trinity Studio: {served.address(served.admission.token)}",
            "the address works once, and on this machine only; Ctrl-C ends Studio, and no run",
        )
    place = join_address(served.listening.host, served.port)
    return (
        f"Trinity Studio: https://{place}, under the names {', '.join(sorted(served.site.names))}",
        "browsers sign in with a token of the scope `read` (`trinity token`)",
    )


def _set_streamlit_options(port: int, host: str, names: list[str]) -> None:
    bootstrap.load_config_options(
        {
            **OPTIONS,
            "server.address": host,
            "server.allowedHosts": names,
            "server.port": port,
        }
    )
    one_line = OneLineOfValues()
    for name in VALUE_LOGGERS:
        logging.getLogger(name).addFilter(one_line)
