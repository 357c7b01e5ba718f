"""Studio with a certificate, as in a deployment: its pages know whose token signed in."""

import asyncio
import http.client
import re
import ssl
import subprocess
import sys
import textwrap
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.typing import Origin, Subprotocol

from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.tokens import issue_token
from trinity.studio.gate import KEY_PROTOCOL
from trinity.studio.visitors import MAX_SOCKETS

HOUR = timedelta(hours=1)
PATIENCE_SECONDS = 240.0
GREED = 150
"""Pages that one visitor tries to open."""
FIELD = re.compile(r'id: "(\$\$[^"]+)"')
ADDRESS = re.compile(r"https://127\.0\.0\.1:(\d+)")
SERVE = """
import sys
from pathlib import Path
from trinity.runtime.security.credentials import Credentials
from trinity.studio.context import StudioOptions
from trinity.studio.listening import Listening
from trinity.studio.server import serve
from trinity.studio.connection import System

folder = Path(sys.argv[1])
security = Credentials(folder)
# Where it is reached from elsewhere Studio listens there; the test stays on loopback.
listening = Listening(
    host="127.0.0.1", port=0, certificate=folder / "tls.crt", key=folder / "tls.key"
)
system = System(buffer="127.0.0.1:1", synchronizer="127.0.0.1:2", security=security)
options = StudioOptions(places=(folder.parent,), system=system)
serve(options, listening, security=security, say=lambda line: print(line, flush=True))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    port: int
    issuer: CredentialIssuer
    tls: ssl.SSLContext
    log: Path

    def sign_in(self, subject: str = "ann") -> tuple[str, str]:
        """The cookie and the page key of a browser that has signed in."""
        token = issue_token(
            self.issuer.signing_key, subject=subject, tenant="a", scopes=[Scope.READ], lifetime=HOUR
        )
        made = http.client.HTTPSConnection(
            "localhost", self.port, timeout=PATIENCE_SECONDS, context=self.tls
        )
        with closing(made) as connection:
            body = urllib.parse.urlencode({"token": token})
            origin = f"https://localhost:{self.port}"
            connection.request("POST", "/sign-in", body, {"Origin": origin})
            answer = connection.getresponse()
            assert answer.status == 303
            key = str(answer.headers["location"]).replace("/#key=", KEY_PROTOCOL)
            return str(answer.headers["set-cookie"]).partition(";")[0], key

    @asynccontextmanager
    async def socket(self, name: str, browser: tuple[str, str]) -> AsyncIterator[ClientConnection]:
        """An open page, which has asked for its content."""
        cookie, key = browser
        request = BackMsg()
        request.rerun_script.page_name = name
        async with connect(
            f"wss://localhost:{self.port}/_stcore/stream",
            origin=Origin(f"https://localhost:{self.port}"),
            additional_headers={"Cookie": cookie},
            subprotocols=[Subprotocol("streamlit"), Subprotocol(key)],
            ssl=self.tls,
            max_size=None,
            open_timeout=PATIENCE_SECONDS,
            proxy=None,
        ) as websocket:
            await websocket.send(request.SerializeToString())
            yield websocket

    async def values(self, name: str, browser: tuple[str, str]) -> None:
        """Sends each field of a page values of kinds that it does not have."""
        async with self.socket(name, browser) as websocket:
            fields, sent = set[str](), ForwardMsg()
            while sent.WhichOneof("type") != "script_finished":
                async with asyncio.timeout(PATIENCE_SECONDS):
                    message = await websocket.recv()
                assert isinstance(message, bytes)
                sent = ForwardMsg.FromString(message)
                fields |= set(FIELD.findall(str(sent)))
            assert fields, "the page has no field"
            request = BackMsg()
            request.rerun_script.page_name = name
            for field in (*fields, "none"):
                request.rerun_script.widget_states.widgets.add(id=field, json_value="{no JSON")
            await websocket.send(request.SerializeToString())
            async for message in websocket:
                assert isinstance(message, bytes)
                if ForwardMsg.FromString(message).WhichOneof("type") == "script_finished":
                    return

    async def page(self, name: str, browser: tuple[str, str], *, until: bytes) -> bytes:
        """All that Streamlit sends a browser for a page, until these words are there."""
        async with self.socket(name, browser) as websocket:
            sent = b""
            async with asyncio.timeout(PATIENCE_SECONDS):
                while until not in sent:
                    message = await websocket.recv()
                    assert isinstance(message, bytes)
                    sent += message
        return sent


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    issuer = CredentialIssuer(tmp_path / "security")
    folder = issuer.issue(CredentialRole(name="studio", scopes=()), HOUR)
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVE), str(folder)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    try:
        found = ADDRESS.search(process.stdout.readline())
        assert found is not None
        tls = ssl.create_default_context(cafile=folder / "ca.crt")
        yield Serving(port=int(found[1]), issuer=issuer, tls=tls, log=log)
    finally:
        process.kill()
        process.communicate()


async def test_a_page_calls_the_services_with_the_token_of_its_visitor(serving: Serving) -> None:
    browser = serving.sign_in()
    runs = await serving.page(
        "runs", browser, until=b"The synchronizer at 127.0.0.1:2 does not answer"
    )
    assert b"Your token has expired" not in runs
    configure = await serving.page("configure", browser, until=b"a token does not open it")
    assert b"model_path" not in configure


async def test_values_of_other_kinds_are_one_line_and_no_traceback(serving: Serving) -> None:
    await serving.values("compare", serving.sign_in())
    said = serving.log.read_text()
    assert said.count("a websocket sends a value that its field does not take") == 1, said
    assert "Traceback" not in said


async def test_a_visitor_with_very_many_pages_keeps_no_other_one_waiting(serving: Serving) -> None:
    greedy = serving.sign_in()
    num_open = 0
    async with AsyncExitStack() as pages:
        for _ in range(GREED):
            try:
                await pages.enter_async_context(serving.socket("runs", greedy))
            except InvalidMessage:
                pass  # closed without an answer
            except InvalidStatus as refused:
                assert refused.response.status_code == 403
            else:
                num_open += 1
        assert num_open == MAX_SOCKETS
        assert await serving.page("runs", serving.sign_in("bob"), until=b"does not answer")
