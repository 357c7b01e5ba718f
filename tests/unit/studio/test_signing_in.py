"""Beyond loopback a browser signs in with a token of the system, and stays until that expires."""

import asyncio
import http.client
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from trinity.errors import UserError
from trinity.runtime.security.authorization import EVERY_TENANT, Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.security.tokens import issue_token
from trinity.studio import sign_in
from trinity.studio.gate import KEY_PROTOCOL, MAX_BROWSERS, Admission, Gate, Site
from trinity.studio.listening import Listening
from trinity.studio.visitors import Shares, Visitor

NAME = "studio.example.org"
HOUR = timedelta(hours=1)


async def pages(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Stands for Streamlit: a websocket stays open until the browser leaves."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "streamlit"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "here"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    cookie: str
    location: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A gate that speaks TLS on a port of loopback, under its certificate's names."""

    issuer: CredentialIssuer
    admission: Admission
    gate: Gate
    folder: Path
    port: int

    def token(
        self,
        *,
        subject: str = "ann",
        scopes: tuple[Scope, ...] = (Scope.READ,),
        lifetime: timedelta = HOUR,
    ) -> str:
        return issue_token(
            self.issuer.signing_key, subject=subject, tenant="a", scopes=scopes, lifetime=lifetime
        )

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.crt")

    def request(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        made = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.tls())
        with closing(made) as connection:
            connection.request(method, path, body, {"Connection": "close", "Host": NAME, **headers})
            answer = connection.getresponse()
            return Answer(
                status=answer.status,
                cookie=answer.headers.get("set-cookie", ""),
                location=answer.headers.get("location", ""),
                text=answer.read().decode(),
            )

    def sign_in(self, token: str, origin: str = f"https://{NAME}") -> Answer:
        form = urllib.parse.urlencode({"token": token})
        return self.request("POST", "/sign-in", form, Origin=origin)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    issuer = CredentialIssuer(tmp_path)
    folder = issuer.issue(CredentialRole(name="studio", scopes=(), hosts=(NAME,)), HOUR)
    security = Credentials(folder)
    listening = Listening.of("0.0.0.0", 0, security)
    admission = Admission(announce=lambda _: None, keys=security.token_keys())
    site = Site(cookie_name="c", names=listening.names(), is_secure=True)
    gate = Gate(pages, admission=admission, site=site, shares=Shares(), allows_changes=True)
    tls = listening.tls_context()
    assert tls is not None
    config = uvicorn.Config(
        gate,
        port=0,
        log_config=None,
        lifespan="off",
        ssl_context_factory=lambda _, __: tls,
    )
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    yield Served(
        issuer=issuer,
        admission=admission,
        gate=gate,
        folder=folder,
        port=socket.getsockname()[1],
    )
    server.should_exit = True
    thread.join()


def test_a_token_with_the_right_to_read_lets_a_browser_in(served: Served) -> None:
    asked = served.request("GET", "/run?run=x")
    assert asked.status == 401
    assert '<form method="post" action="/sign-in">' in asked.text
    entered = served.sign_in(served.token())
    assert (entered.status, entered.location.partition("#")[0]) == (303, "/")
    assert entered.cookie.endswith("; HttpOnly; Secure; SameSite=Strict; Path=/")
    cookie = entered.cookie.partition(";")[0]
    assert served.request("GET", "/", Cookie=cookie).text == "page"
    visitor = served.admission.visitor(cookie.removeprefix("c="))
    assert visitor is not None
    assert (visitor.name, visitor.is_owner) == ("ann", False)
    assert visitor.token not in repr(visitor)


def test_what_is_wrong_with_a_token_is_said_in_one_sentence(served: Served, tmp_path: Path) -> None:
    stranger = CredentialIssuer(tmp_path / "stranger")
    foreign = issue_token(
        stranger.signing_key, subject="x", tenant="a", scopes=[Scope.READ], lifetime=HOUR
    )
    said = {
        served.token(
            scopes=(Scope.SUBMIT, Scope.STEER)
        ): "This token has no right to read: get one",
        served.token(lifetime=timedelta(seconds=-1)): "The token has expired: get a new one",
        foreign: "The token is not signed with a key that is accepted here.",
        "<b>": "The token is malformed",
        "": "The token is malformed",
        "x" * 20_000: "The token is malformed",
    }
    for token, sentence in said.items():
        refused = served.sign_in(token)
        assert refused.status == 401
        assert not refused.cookie
        assert sentence in refused.text
        assert "<b>" not in refused.text


def test_the_owners_address_works_on_loopback_alone(served: Served) -> None:
    assert served.request("GET", f"/?token={served.admission.token}").status == 401


def test_a_form_of_another_site_signs_nobody_in(served: Served) -> None:
    for origin in ("https://evil.example", "null", f"https://{NAME}:1"):
        assert served.sign_in(served.token(), origin).status == 403
    form = urllib.parse.urlencode({"token": served.token()})
    assert served.request("POST", "/sign-in", form).status == 403


def test_only_the_names_of_the_certificate_are_answered(served: Served) -> None:
    cookie = served.sign_in(served.token()).cookie.partition(";")[0]
    for host, status in ((NAME, 200), (f"{NAME}.", 200), ("studio", 200), ("other", 403)):
        assert served.request("GET", "/", Cookie=cookie, Host=host).status == status
    assert served.request("GET", "/healthz", Host="10.0.0.7:8080").status == 200


def test_a_wildcard_stands_for_one_label() -> None:
    site = Site(cookie_name="c", names=frozenset({"*.example.org"}))
    names = ("a.example.org", "a.b.example.org", "example.org", "A.Example.Org.")
    assert [site.has_name(name) for name in names] == [True, False, False, True]


def test_a_cookie_ends_with_its_token_and_so_does_an_open_page(served: Served) -> None:
    for seconds in (3, 15, 75):  # as long as it takes to open a page on a busy machine
        entered = served.sign_in(served.token(lifetime=timedelta(seconds=seconds)))
        with suppress(InvalidStatus, ConnectionClosed):
            assert asyncio.run(code_that_closes(served, entered)) == 1008
            break
    else:
        pytest.fail("no page was open before its token expired")
    refused = served.request("GET", "/", Cookie=entered.cookie.partition(";")[0])
    assert refused.status == 401
    assert "Your token has expired" in refused.text


async def code_that_closes(served: Served, entered: Answer) -> int:
    """Opens a page and waits until the server closes it; raises if it is too late."""
    async with connect(
        f"wss://localhost:{served.port}/_stcore/stream",
        origin=Origin(f"https://localhost:{served.port}"),
        additional_headers={"Cookie": entered.cookie.partition(";")[0]},
        subprotocols=[
            Subprotocol("streamlit"),
            Subprotocol(entered.location.replace("/#key=", KEY_PROTOCOL)),
        ],
        ssl=served.tls(),
        proxy=None,
        open_timeout=60,
    ) as websocket:
        await websocket.send(BackMsg(rerun_script=ClientState()).SerializeToString())
        assert await websocket.recv() == "here"
        async with asyncio.timeout(240):
            with pytest.raises(ConnectionClosed) as closed:
                await websocket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_a_key_that_is_taken_back_shuts_its_visitors_out(served: Served, tmp_path: Path) -> None:
    cookie = served.sign_in(served.token()).cookie.partition(";")[0]
    assert served.request("GET", "/", Cookie=cookie).status == 200
    other = CredentialIssuer(tmp_path / "other").signing_key.with_name("token-keys.pem")
    keys = served.folder / "token-keys.pem"
    replacement = keys.with_name("new")
    replacement.write_text(other.read_text())
    replacement.replace(keys)
    assert served.request("GET", "/", Cookie=cookie).status == 401


def test_a_renewed_certificate_applies_to_the_next_connection(served: Served) -> None:
    before = ssl.get_server_certificate(("127.0.0.1", served.port))
    served.issuer.issue(CredentialRole(name="studio", scopes=(), hosts=(NAME,)), HOUR)
    assert served.request("GET", "/healthz").status == 200
    assert ssl.get_server_certificate(("127.0.0.1", served.port)) != before


def test_beyond_loopback_there_is_no_studio_without_certificates(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without TLS and tokens: set TRINITY_SECURITY"):
        Listening.of("0.0.0.0", 0, PLAINTEXT)
    with pytest.raises(UserError, match=r"tls\.crt is missing"):
        Listening.of("::", 0, Credentials(tmp_path))
    assert not Listening.of("127.0.0.1", 0, PLAINTEXT).is_secure


def test_where_services_check_no_tokens_one_of_all_tenants_is_needed(tmp_path: Path) -> None:
    """Such services show everything to all who reach them, and Studio reaches them for all."""
    issuer = CredentialIssuer(tmp_path)
    folder = issuer.issue(CredentialRole(name="studio", scopes=(), hosts=(NAME,)), HOUR)
    keys = Credentials(folder).token_keys()

    def token(tenant: str) -> str:
        return issue_token(
            issuer.signing_key, subject="ann", tenant=tenant, scopes=[Scope.READ], lifetime=HOUR
        )

    lenient = Admission(announce=lambda _: None, keys=keys)
    assert lenient.admits(lenient.sign_in(token("a")))
    strict = Admission(announce=lambda _: None, keys=keys, needs_all_tenants=True)
    assert strict.admits(strict.sign_in(token(EVERY_TENANT)))
    with pytest.raises(UserError, match=r"check no tokens.*trinity token --tenant '\*'"):
        strict.sign_in(token("a"))


def test_no_two_visits_share_a_key() -> None:
    """What is kept for a visit is kept under its key."""
    first, second = (Visitor(name="ann", is_owner=False, token="t") for _ in range(2))
    assert first.key != second.key


def test_only_those_who_may_submit_tasks_fill_the_memory_with_files(served: Served) -> None:
    path = "/_stcore/upload_file/session/file"
    for scopes, status in (((Scope.READ,), 403), ((Scope.READ, Scope.SUBMIT), 200)):
        cookie = served.sign_in(served.token(scopes=scopes)).cookie.partition(";")[0]
        assert served.request("PUT", path, "x", Cookie=cookie).status == status
    served.gate._allows_changes = False
    assert served.request("PUT", path, "x", Cookie=cookie).status == 403


def test_who_signs_in_again_and_again_shuts_out_nobody_else(served: Served) -> None:
    other = served.admission.sign_in(served.token(subject="bob"))
    own = [served.admission.sign_in(served.token()) for _ in range(MAX_BROWSERS + 3)]
    assert served.admission.admits(other)
    assert not served.admission.admits(own[0])
    assert served.admission.admits(own[-1])


async def test_a_form_that_does_not_arrive_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "BODY_SECONDS", 0.05)

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    assert await sign_in.sent_token(Request({"type": "http"}, never)) == ""
