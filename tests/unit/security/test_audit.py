"""The audit log names everybody who was refused, however busy somebody else is."""

import asyncio
import logging

import pytest

from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.rpc import audit
from trinity.runtime.security.authorization import Caller

METHOD = "trinity.api.v1.BufferService/OpenStage"
PEER = "ipv4:10.0.0.1:40001"


@pytest.fixture(autouse=True)
def _a_log_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_limited", RateLimitedLog(audit.logger, interval_seconds=0.2))


def caller(subject: str, tenant: str) -> Caller:
    return Caller(subject=subject, tenant=tenant, scopes=frozenset(), expires_at=0.0)


def refuse(
    subject: str = "explorer-a", tenant: str = "a", method: str = METHOD, peer: str = PEER
) -> None:
    audit.log_refusal("tenant", method=method, peer=peer, caller=caller(subject, tenant))


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.name == audit.LOGGER_NAME]


async def test_one_tenants_noise_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        refuse(peer=f"ipv4:10.0.0.1:{40000 + number}")
    refuse("explorer-b", "b", peer="ipv6:[::1]:50002")
    first, other = told(caplog)
    assert (first["subject"], first["tenant"]) == ("explorer-a", "a")
    assert (first["peer"], first["port"]) == ("ipv4:10.0.0.1", "40000")
    assert (other["subject"], other["tenant"]) == ("explorer-b", "b")
    assert (other["method"], other["peer"]) == (METHOD, "ipv6:[::1]")


@pytest.mark.parametrize(
    "other", [{"subject": "other"}, {"method": "other"}, {"peer": "ipv4:10.0.0.2:40001"}]
)
async def test_another_name_method_or_host_is_a_line(
    other: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    refuse()
    refuse(**other)
    refuse(**other)
    assert len(told(caplog)) == 2


async def test_who_has_no_token_is_told_by_host(caplog: pytest.LogCaptureFixture) -> None:
    for peer in (PEER, "ipv4:10.0.0.2:1", "ipv4:10.0.0.1:2"):
        audit.log_refusal("no token", method=METHOD, peer=peer, caller=None)
    assert [one["peer"] for one in told(caplog)] == ["ipv4:10.0.0.1", "ipv4:10.0.0.2"]


async def test_the_count_says_whose_it_is(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        refuse()
    refuse("explorer-b", "b")
    await asyncio.sleep(0.3)
    *_, last = told(caplog)
    assert len(told(caplog)) == 3
    assert last["message"] == "refused: tenant again" and last["times"] == 4
    assert (last["subject"], last["method"], last["peer"]) == (
        "explorer-a",
        METHOD,
        "ipv4:10.0.0.1",
    )


async def test_who_varies_names_is_counted_in_bounded_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RateLimitedLog(logging.getLogger(audit.LOGGER_NAME), interval_seconds=0.2, max_bursts=3)
    for number in range(1_000):
        log.warning("refused", {"subject": str(number)})
    assert [one["subject"] for one in told(caplog)] == ["0", "1", "2", "3"]
    await asyncio.sleep(0.3)
    (last,) = told(caplog)[4:]
    assert (last["message"], last["times"]) == ("refused again", 996)
    assert "subject" not in last
