"""A small server of chat completions: what somebody else's model looks like from here."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

KEY = "sk-1f0c6e7c3b4f0e9d2e"


@dataclass
class ChatServer:
    """Answers with the last message in capitals; `plan` says otherwise, request by request."""

    plan: list[web.Response] = field(default_factory=list)
    """Given in their order before anything is answered."""
    always: Mapping[str, object] | int | None = None
    """A body, or a status, in the place of every answer."""
    requests: list[Mapping[str, object]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    @property
    def address(self) -> str:
        """As a user gives it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        self.seen.set()
        if self.plan:
            return self.plan.pop(0)
        if isinstance(self.always, int):
            return web.Response(status=self.always, text=f"no: {self.keys[-1]}")
        return web.json_response(self.always or self._answer(body["messages"][-1]["content"]))

    def _answer(self, said: str) -> Mapping[str, object]:
        message = {"role": "assistant", "content": said.upper()}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["ChatServer"]:
        """Listen, on a free port unless one is named."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()
