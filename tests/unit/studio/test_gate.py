"""The gate lets through what has a cookie, and nothing else reaches the pages."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.http_answers import HttpAnswer, http_get
from trinity.studio import gate as module
from trinity.studio.frames import NOT_UNDERSTOOD, OneLineOfValues
from trinity.studio.gate import KEY_PROTOCOL, MAX_BROWSERS, Admission, Gate, Site
from trinity.studio.visitors import MAX_REQUESTS, MAX_SOCKETS, OWNER, Shares

COOKIE = "trinity-studio-test"


@dataclass
class Pages:
    """Stands for Streamlit: counts what reaches it."""

    reached: list[str] = field(default_factory=list)
    protocols: list[list[str]] = field(default_factory=list)
    going_on: threading.Event = field(default_factory=threading.Event)
    """Ends the requests for `/slow`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        self.reached.append(f"{scope['type']} {scope['path']}")
        if scope["type"] == "websocket":
            self.protocols.append(scope["subprotocols"])
            assert KEY_PROTOCOL not in str(scope["headers"])
            await receive()
            await send({"type": "websocket.accept", "subprotocol": "streamlit"})
            while (frame := await receive())["type"] != "websocket.disconnect":
                await send({"type": "websocket.send", "bytes": frame["bytes"]})
            return
        if scope["path"] == "/slow":
            await asyncio.to_thread(self.going_on.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"page"})


@dataclass
class Served:
    """A gate that serves on a port."""

    pages: Pages
    admission: Admission
    announced: list[str]
    port: int

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return http_get(self.port, path, headers)

    def enter(self) -> str:
        """The cookie that the current token gives."""
        answer = self.get(f"/?token={self.admission.token}")
        assert answer.status == 303
        return answer.headers["set-cookie"].partition(";")[0]

    def key(self, cookie: str) -> str:
        """The page key of a browser with the cookie, as a subprotocol."""
        return f"{KEY_PROTOCOL}{self.admission.page_key(cookie.partition('=')[2])}"

    def socket(self, cookie: str, key: str = "", origin: str | None = "") -> ClientConnection:
        """An open websocket, as Streamlit's frontend opens it."""
        protocols = ["streamlit", "PLACEHOLDER", key or self.key(cookie)]
        return connect(
            f"ws://127.0.0.1:{self.port}/_stcore/stream",
            origin=f"http://127.0.0.1:{self.port}" if origin == "" else origin,  # type: ignore[arg-type]
            additional_headers={"Cookie": cookie} if cookie else {},
            subprotocols=protocols,  # type: ignore[arg-type]
            proxy=None,
        )

    def websocket_status(self, origin: str | None, cookie: str = "", key: str = "") -> int:
        """The status of opening a websocket; 101 if it opens."""
        try:
            with self.socket(cookie, key, origin):
                return 101
        except InvalidStatus as error:
            return error.response.status_code


@pytest.fixture
def served() -> Iterator[Served]:
    pages, announced = Pages(), list[str]()
    admission = Admission(announce=announced.append)
    gate = Gate(pages, admission=admission, site=Site(cookie_name=COOKIE), shares=Shares())
    config = uvicorn.Config(gate, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    yield Served(pages, admission, announced, socket.getsockname()[1])
    server.should_exit = True
    thread.join()


def test_without_a_cookie_no_request_and_no_websocket_reaches_a_page(served: Served) -> None:
    for path in ("/", "/_stcore/health", "/static/js/index.js", "/_stcore/upload_file/a/b"):
        assert served.get(path).status == 401
    assert served.websocket_status(f"http://127.0.0.1:{served.port}") == 403
    assert served.pages.reached == []


def test_with_the_cookie_both_do(served: Served) -> None:
    """The control of the test above."""
    cookie = served.enter()
    assert served.get("/page", Cookie=cookie).status == 200
    assert served.websocket_status(f"http://127.0.0.1:{served.port}", cookie) == 101
    assert served.pages.reached == ["http /page", "websocket /_stcore/stream"]


def test_a_token_works_once_and_the_next_one_is_announced(served: Served) -> None:
    first = served.admission.token
    assert served.get(f"/?token={first}").status == 303
    assert served.get(f"/?token={first}").status == 401
    assert served.announced == [served.admission.token]
    assert served.get(f"/?token={served.announced[0]}").status == 303


@pytest.mark.parametrize("query", ["token=", "token=x", "token=%FF", "token=a&token=a", "&" * 99])
def test_other_tokens_do_not_work(served: Served, query: str) -> None:
    assert served.get(f"/?{query}").status == 401
    assert served.announced == []


def test_a_token_works_for_no_other_path_and_is_not_spent_there(served: Served) -> None:
    assert served.get(f"/run?token={served.admission.token}").status == 401
    assert served.enter()


@pytest.mark.parametrize(
    "cookie", [f"{COOKIE}=", f"{COOKIE}=x", "other=1", 'a;b="c', f"x{COOKIE}=y", "=" * 999]
)
def test_other_cookies_do_not_work(served: Served, cookie: str) -> None:
    served.enter()
    assert served.get("/", Cookie=cookie).status == 401


def test_a_site_whose_name_leads_here_is_refused(served: Served) -> None:
    """A browser sends the cookie of a host only to that host, and this must not depend on it."""
    cookie = served.enter()
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", ""):
        assert served.get("/", Host=host, Cookie=cookie).status == 403
    for host in ("localhost:1", "[::1]:1", "127.0.0.1"):  # a tunnel has a port of its own
        assert served.get("/", Host=host, Cookie=cookie).status == 200


def test_a_page_of_another_site_opens_no_websocket(served: Served) -> None:
    cookie = served.enter()
    for origin in ("http://evil.example", "http://127.0.0.1:1", "http://[::1", "null", None):
        assert served.websocket_status(origin, cookie) == 403
    assert served.get("/", Cookie=cookie, Origin="http://evil.example").status == 403
    assert served.pages.reached == []


def test_the_cookie_is_for_this_site_alone_and_no_script_reads_it(served: Served) -> None:
    answer = served.get(f"/?token={served.admission.token}")
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    key = served.key(cookie).removeprefix(KEY_PROTOCOL)
    assert answer.headers["location"] == f"/#key={key}"  # no request has what is behind the #


def test_pages_may_load_nothing_from_elsewhere(served: Served) -> None:
    policy = served.get("/", Cookie=served.enter()).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http:" not in policy and "https:" not in policy and "*" not in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


def test_the_oldest_browser_is_forgotten_first() -> None:
    admission = Admission(announce=lambda _: None)
    cookies = [admission.redeem(admission.token) or "" for _ in range(MAX_BROWSERS + 1)]
    assert [admission.admits(cookie) for cookie in (cookies[0], cookies[1], cookies[-1])] == [
        False,
        True,
        True,
    ]


def test_a_browser_that_signs_in_disturbs_no_page_that_looks_for_its_visitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission(announce=lambda _: None)
    for _ in range(2):
        admission.redeem(admission.token)
    cookie = admission.redeem(admission.token) or ""

    def is_same(given: str, known: str) -> bool:
        admission._admit(OWNER)  # another browser, just now
        return given == known

    monkeypatch.setattr(module, "_is_same", is_same)
    visitor = admission.visitor(cookie)
    assert visitor is not None and visitor.is_owner


def test_the_owner_may_send_files(served: Served) -> None:
    """The page Configure takes one."""
    assert served.get("/_stcore/upload_file/s/f", Cookie=served.enter()).status == 200


def test_a_cookie_alone_opens_no_page(served: Served) -> None:
    """A server at another port of this host gets the cookie, too, and could send it from here."""
    origin = f"http://127.0.0.1:{served.port}"
    mine, other = served.enter(), served.enter()
    for key in ("streamlit", KEY_PROTOCOL, f"{KEY_PROTOCOL}x", served.key(other), served.key("")):
        assert served.websocket_status(origin, mine, key) == 403
    assert served.pages.reached == []
    assert served.websocket_status(origin, mine, served.key(mine)) == 101
    assert served.pages.protocols == [["streamlit", "PLACEHOLDER"]], "Streamlit sees no key"


def test_who_has_a_cookie_and_no_key_is_asked_to_enter(served: Served) -> None:
    cookie = served.enter()
    assert served.get("/sign-in", Cookie=cookie).status == 401
    assert served.pages.reached == []


def test_a_browser_opens_so_many_pages_and_keeps_no_other_one_out(served: Served) -> None:
    origin = f"http://127.0.0.1:{served.port}"
    greedy, other = served.enter(), served.enter()
    with ExitStack() as open_pages:
        for _ in range(MAX_SOCKETS):
            open_pages.enter_context(served.socket(greedy))
        assert served.websocket_status(origin, greedy) == 403
        assert served.websocket_status(origin, other) == 101
    for _ in range(1_000):  # the server hears of the closed ones in its own time
        if (status := served.websocket_status(origin, greedy)) == 101:
            break
    assert status == 101, "the control: closed pages make room"


def test_a_browser_is_answered_so_many_requests_at_once(served: Served) -> None:
    greedy, other = served.enter(), served.enter()
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        waiting = [pool.submit(served.get, "/slow", Cookie=greedy) for _ in range(MAX_REQUESTS)]
        try:
            while served.pages.reached.count("http /slow") < MAX_REQUESTS:
                assert not [asked for asked in waiting if asked.done()]
            assert served.get("/", Cookie=greedy).status == 429
            assert served.get("/", Cookie=other).status == 200
        finally:
            served.pages.going_on.set()
        assert {asked.result().status for asked in waiting} == {200}


@pytest.mark.parametrize("frame", ["a text", "", b"\xff\xff no message", b"\x0a"])
def test_a_frame_that_no_page_sends_closes_the_page_in_one_line(
    served: Served, frame: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with served.socket(served.enter()) as page:
        page.send(frame)
        with pytest.raises(ConnectionClosed) as closed:
            page.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == NOT_UNDERSTOOD
    assert "Traceback" not in caplog.text


def test_what_pages_need_comes_through_and_nothing_else(served: Served) -> None:
    asked = {kind: BackMsg() for kind in ("clear_cache", "load_git_info", "rerun_script")}
    asked["clear_cache"].clear_cache = asked["load_git_info"].load_git_info = True
    asked["rerun_script"].rerun_script.page_name = "run"
    with served.socket(served.enter()) as page:
        for message in asked.values():
            page.send(message.SerializeToString())
        assert page.recv(timeout=60) == asked["rerun_script"].SerializeToString()


@pytest.mark.parametrize("function", ["deserialize", "show"])
def test_only_what_reading_a_value_raises_loses_its_traceback(function: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def {function}():\n    raise KeyError('x')", scope)
    with pytest.raises(KeyError) as raised:
        scope[function]()
    record = logging.makeLogRecord({"exc_info": (KeyError, raised.value, raised.tb), "msg": "no"})
    limit = OneLineOfValues()
    assert limit.filter(record)
    assert (record.exc_info is None) == (function == "deserialize")
    again = logging.makeLogRecord({"exc_info": (KeyError, raised.value, raised.tb)})
    assert limit.filter(again) == (function != "deserialize")
