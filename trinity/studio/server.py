"""Serves Studio's pages: Streamlit under uvicorn, behind the gate, on loopback only."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from starlette.middleware import Middleware
from streamlit.starlette import App
from streamlit.web import bootstrap

from trinity.errors import UserError
from trinity.studio.context import StudioContext, set_context
from trinity.studio.gate import TOKEN_PARAMETER, Admission, Gate

HOST = "127.0.0.1"
SCRIPT = Path(__file__).with_name("app.py")
HEADING_SIZES = ["1.5rem", "1.25rem", "1.125rem"]
"""Set for each theme: a theme of its own would be light in browsers that ask for a dark one."""
OPTIONS: Mapping[str, bool | int | str | list[str]] = {
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",  # errors quote users' data, and would be read as Markdown
    "client.showErrorLinks": False,
    "client.toolbarMode": "minimal",
    "global.disableWidgetStateDuplicationWarning": True,
    "logger.level": "warning",
    "runner.magicEnabled": False,
    "server.address": HOST,
    "server.allowedHosts": ["localhost", "127.0.0.1", "::1"],
    "server.enableAgentApi": False,
    "server.enableStaticServing": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 64,
    "server.showEmailPrompt": False,
    "theme.dark.headingFontSizes": HEADING_SIZES,
    "theme.light.headingFontSizes": HEADING_SIZES,
}
"""They precede Streamlit's own configuration files, which are the user's."""
GRACE_SECONDS = 2
"""Time that open connections get at the end; a browser never closes its websocket by itself."""


def serve(context: StudioContext, *, port: int, say: Callable[[str], None]) -> None:
    """Serves until the process is interrupted; `say` gets the lines for the terminal.

    Raises: UserError when the port is taken.
    """
    listener = _listen(port)
    port = listener.getsockname()[1]
    _set_streamlit_options(port)
    set_context(context)
    admission = Admission(announce=lambda token: say(f"another browser: {_address(port, token)}"))
    gate = Middleware(Gate, admission=admission, cookie_name=f"trinity-studio-{port}")
    app = App(SCRIPT, middleware=[gate])
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    say(f"Trinity Studio: {_address(port, admission.token)}")
    say("the address works once, and on this machine only; Ctrl-C ends Studio, and no run")
    try:
        server.run(sockets=[listener])
    finally:
        context.close()


def _address(port: int, token: str) -> str:
    return f"http://{HOST}:{port}/?{TOKEN_PARAMETER}={token}"


def _listen(port: int) -> socket.socket:
    """Opens the port itself, so that its number is known and its address is certain."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # a browser that is faster than the server waits
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot serve Studio on {HOST}:{port}: {error.strerror}; give another --port, or "
            "--port 0 for any that is free"
        ) from error
    return listener


def _set_streamlit_options(port: int) -> None:
    bootstrap.load_config_options({**OPTIONS, "server.port": port})
