"""Whatever is sent to an OpenAI-compatible address: a documented status, and it goes on."""

import logging
from urllib.parse import urlsplit

import pytest

from tests.integration.hostile.http_attack import HttpAttack
from tests.integration.hostile.http_requests import HttpFuzzer
from tests.unit.explorer.offering import QUESTION, Offered

NUM_REQUESTS = 1_000


def is_ours(record: logging.LogRecord) -> bool:
    return record.name.startswith(("services.", "trinity."))


def attack_on(offered: Offered, seed: int) -> HttpAttack:
    access = offered.model.api_access
    parts = urlsplit(access.address)
    assert parts.port is not None
    fuzzer = HttpFuzzer(seed, prefix=parts.path.removesuffix("/v1"), key=access.key)
    return HttpAttack(parts.port, fuzzer)


@pytest.mark.parametrize("seed", [1, 2])
async def test_malformed_requests_are_answered_and_do_no_harm(
    offered: Offered, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    attack = attack_on(offered, seed)
    await attack.go_on(NUM_REQUESTS)
    assert not attack.wrong, (attack.statuses, attack.wrong[:20])
    assert attack.statuses.total() == NUM_REQUESTS
    assert attack.statuses[200] > NUM_REQUESTS / 20, attack.statuses  # some get to the engine
    assert attack.statuses[400] > NUM_REQUESTS / 10, attack.statuses
    told = {
        record.getMessage().removesuffix(" again") for record in caplog.records if is_ours(record)
    }
    assert told <= {"uvicorn: Invalid HTTP request received."}, told
    async with offered.client as client:
        answer = await client.chat.completions.create(model="any", messages=QUESTION)  # type: ignore[arg-type]
    assert answer.choices[0].message.content


async def test_a_server_that_fails_is_found(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same requests to a server whose mistakes are its own."""

    def fails(_: object) -> None:
        raise RuntimeError("a mistake of the server")

    monkeypatch.setattr("services.explorer.openai_api.fields.includes_usage", fails)
    attack = attack_on(offered, seed=1)
    await attack.go_on(200)
    assert attack.wrong
