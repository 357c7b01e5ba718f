"""The gate lets through what has a cookie, and nothing else reaches the pages."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.http_answers import HttpAnswer, http_get
from trinity.studio import gate as module
from trinity.studio.gate import MAX_BROWSERS, Admission, Gate, Site
from trinity.studio.visitors import OWNER

COOKIE = "trinity-studio-test"


@dataclass
class Pages:
    """Stands for Streamlit: counts what reaches it."""

    reached: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        self.reached.append(f"{scope['type']} {scope['path']}")
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})
            return
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

    def websocket_status(self, origin: str | None, cookie: str = "") -> int:
        """The status of opening a websocket; 101 if it opens."""
        headers = {"Cookie": cookie} if cookie else {}
        try:
            with connect(
                f"ws://127.0.0.1:{self.port}/_stcore/stream",
                origin=origin,  # type: ignore[arg-type]
                additional_headers=headers,
                proxy=None,
            ):
                return 101
        except InvalidStatus as error:
            return error.response.status_code


@pytest.fixture
def served() -> Iterator[Served]:
    pages, announced = Pages(), list[str]()
    admission = Admission(announce=announced.append)
    gate = Gate(pages, admission=admission, site=Site(cookie_name=COOKIE))
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
    assert answer.headers["location"] == "/"


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
    assert admission.visitor(cookie) is OWNER


def test_the_owner_may_send_files(served: Served) -> None:
    """The page Configure takes one."""
    assert served.get("/_stcore/upload_file/s/f", Cookie=served.enter()).status == 200
