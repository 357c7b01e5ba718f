"""The setting of a quota, and its use by each tenant."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message

from services.buffer.settings import BufferSettings
from services.synchronizer.settings import SynchronizerSettings
from tests.unit.subtests import as_subtests
from trinity.api.v1 import buffer_pb2
from trinity.errors import InvalidRequest, QuotaExceeded, UserError
from trinity.runtime.rpc.errors import QUOTA, status_code
from trinity.runtime.rpc.guard import Context, MethodGuard, guard_stream, guard_unary
from trinity.runtime.rpc.quotas import QuotaUse, TenantQuota, parse_limits
from trinity.runtime.security.authorization import LOCAL_CALLER, Caller


def quota(text: str) -> TenantQuota:
    return TenantQuota.parse(text, what="blobs", variable="VARIABLE")


def test_a_tenant_may_have_a_limit_of_its_own() -> None:
    own = quota("100, a=4KiB b=0,*=7")
    assert {tenant: own.limit_of(tenant) for tenant in ("a", "b", "c", "*", "")} == {
        "a": 4_096,
        "b": 0,
        "c": 100,
        "*": 7,
        "": 7,
    }


def test_callers_for_all_tenants_have_no_limit_unless_it_is_given() -> None:
    quota("1").check("*", used=10**9, more=1)
    with pytest.raises(QuotaExceeded):
        quota("1").check("a", used=1, more=1)
    quota("1").check("a", used=0, more=1)


@as_subtests(
    "text", ["", "a=1", "many", "-1", "1GB", "=1", "1 =2", "\N{SUPERSCRIPT TWO}", "9" * 20]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="limit"):
        parse_limits(text)


def test_a_wrong_setting_stops_the_process_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("POSTGRES_DSN", "x"), ("NATS_URL", "x"), ("TENANT_TASKSETS", "many")):
        monkeypatch.setenv(f"TRINITY_BUFFER_{name}", value)
    with pytest.raises(UserError, match="TRINITY_BUFFER_TENANT_TASKSETS: 'many' is not a limit"):
        BufferSettings.from_environment()


def test_every_quota_of_a_service_has_a_default_and_its_refusal_names_the_setting() -> None:
    for settings in (BufferSettings, SynchronizerSettings):
        fields = settings.model_fields.items()
        quotas = {name: field for name, field in fields if name.startswith("tenant_")}
        assert quotas
        for name, field in quotas.items():
            prefix = settings.model_config.get("env_prefix", "")
            variable = f"{prefix}{name.upper()}"
            own = TenantQuota.parse(field.default, what="things", variable=variable)
            limit = own.limit_of("a")
            assert limit
            with pytest.raises(QuotaExceeded, match=f"raise {variable}$") as refused:
                own.check("a", used=limit, more=1)
            assert str(refused.value).startswith(f"{QUOTA}tenant a has {limit:,} things")
            assert status_code(refused.value) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_is_given_back_can_be_taken_again() -> None:
    use = QuotaUse(quota("2"))
    with use.hold("a"), use.hold("a"), use.hold("b"):
        with pytest.raises(QuotaExceeded, match="tenant a has 2 blobs, and 1 more"):
            use.take("a")
        use.take("b")
    with use.hold("a"), use.hold("a"):
        pass


class FixedAdmission:
    """Admits one caller to everything."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def authenticate(self, _method: str, _context: Context) -> Caller:
        return self._caller

    def authorize_stream(self, requests: AsyncIterator[Any], *_: object) -> AsyncIterator[Any]:
        return requests

    async def authorize_request(self, *_: object) -> None:
        pass


class Refusals:
    """The context of a call, which keeps how the call was aborted."""

    def __init__(self) -> None:
        self.text = ""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.text = f"{code.name}: {details}"
        raise grpc.aio.AbortError


def guard_of(tenant: str, streams: QuotaUse, *, sends: bool) -> MethodGuard:
    caller = Caller(subject="s", tenant=tenant, scopes=frozenset(), expires_at=2e9)
    return MethodGuard(
        method="Service/Method",
        request_streaming=sends,
        admission=cast(Any, FixedAdmission(caller if tenant else LOCAL_CALLER)),
        is_stream=True,
        streams=streams,
    )


async def nothing() -> AsyncIterator[Message]:
    await asyncio.Event().wait()
    yield buffer_pb2.TasksetEnd()


async def receive(requests: AsyncIterator[Message], _: Context) -> Message:
    return await anext(requests)


async def answer(_: Message, __: Context) -> AsyncIterator[Message]:
    async for message in nothing():
        yield message


async def test_streams_count_in_both_directions_and_by_tenant() -> None:
    """A client that sends nothing holds a task of the server as one does that reads nothing."""
    streams = QuotaUse(quota("2"))

    def send(tenant: str, context: Refusals) -> Any:
        guarded = guard_unary(receive, guard_of(tenant, streams, sends=True))
        return guarded(nothing(), cast(Context, context))

    async def read(tenant: str, context: Refusals) -> None:
        guarded: Any = guard_stream(answer, guard_of(tenant, streams, sends=False))
        request = buffer_pb2.TasksetEnd()
        async for _ in guarded(request, cast(Context, context)):
            pass

    opened = [
        asyncio.ensure_future(send("a", Refusals())),
        asyncio.ensure_future(read("a", Refusals())),
    ]
    opened += [asyncio.ensure_future(read(tenant, Refusals())) for tenant in ("b", "", "", "")]
    await asyncio.sleep(0)
    for call in (send, read):
        refused = Refusals()
        with pytest.raises(grpc.aio.AbortError):
            await call("a", refused)
        assert refused.text.startswith("RESOURCE_EXHAUSTED: quota: tenant a has 2 blobs")
    opened[0].cancel()
    await asyncio.gather(opened[0], return_exceptions=True)
    opened.append(asyncio.ensure_future(send("a", Refusals())))
    await asyncio.sleep(0)
    assert not any(call.done() for call in opened[1:])
    for call in opened:
        call.cancel()
    await asyncio.gather(*opened, return_exceptions=True)


async def test_a_refused_client_may_finish_writing_and_a_silent_one_is_not_awaited() -> None:
    """Python's client tells one whose write fails of an internal error in place of the reason."""
    num_read = 0

    async def requests() -> AsyncIterator[Message]:
        nonlocal num_read
        while num_read < 100:
            num_read += 1
            yield buffer_pb2.TasksetEnd()
        await asyncio.Event().wait()

    async def refuse(requests: AsyncIterator[Message], _: Context) -> Message:
        await anext(requests)
        raise InvalidRequest("choose another name")

    refused = Refusals()
    guard = guard_of("a", QuotaUse(quota("2")), sends=True)
    with pytest.raises(grpc.aio.AbortError):
        async with asyncio.timeout(30):
            await guard_unary(refuse, guard)(requests(), cast(Context, refused))
    assert (num_read, refused.text) == (100, "INVALID_ARGUMENT: choose another name")
