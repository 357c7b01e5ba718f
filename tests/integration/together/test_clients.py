"""Clients of a run over real services: they ask, reward and commit, and it is trained."""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.images import data_url, png
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.rft.explorer.proxy.client import TrinityClient
from trinity.run.local.stack import LocalStack
from trinity.runtime.security.secret_files import SecretFiles

pytestmark = pytest.mark.timeout(600)

SECONDS = 300.0
KEY = "a key of the operator"
TRAINED = """
    SELECT e.explore_step, e.reward, count(*) FROM batch_item i
    JOIN experience e ON e.experience_id = i.experience_id
    WHERE i.experiment_id = %(id)s GROUP BY 1, 2 ORDER BY 1, 2
"""
IMAGES = """
    SELECT m.body, count(DISTINCT u.used_by) FROM media m
    JOIN media_use u USING (tenant, sha256) WHERE u.used_by LIKE 'segment/%%' AND %(id)s <> ''
    GROUP BY 1
"""
SEEN = png((9, 200, 9), (64, 48))
PICTURE = [
    {"type": "image_url", "image_url": {"url": data_url(SEEN)}},
    {"type": "text", "text": "a"},
]


@dataclass
class Served:
    """A run with clients."""

    stack: LocalStack
    root: Path
    experiment: pb.Experiment
    url: str

    async def post(self, path: str, body: Any = None, key: str = KEY) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            headers = {"Authorization": f"Bearer {key}"}
            return await client.post(f"{self.url}{path}", json=body, headers=headers)

    async def client(self, name: str) -> TrinityClient:
        opened = (await self.post("/sessions", {"name": name})).json()
        return TrinityClient(opened["proxy_url"])

    def trained(self) -> list[tuple[Any, ...]]:
        return self._read(TRAINED)

    def images(self) -> list[tuple[Any, ...]]:
        return self._read(IMAGES)

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        dsn = SecretFiles(self.root / "stack" / "infra" / "secrets").folder / "buffer-postgres-dsn"
        with psycopg.connect(dsn.read_text().strip()) as connection:
            return connection.execute(query, {"id": self.experiment.id}).fetchall()


@contextlib.asynccontextmanager
async def serving(root: Path, *, steps: int) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    plan = experiment_plan(
        root,
        name="clients",
        buffer={
            "batch_size": 2,
            "total_steps": steps,
            "explorer_input": {
                "default_workflow_type": "clients",
                "default_reward_fn_type": None,
                "taskset": {"name": "clients", "path": None, "storage_type": "queue"},
            },
        },
        synchronizer={"sync_offset": 1},
        explorer={"proxy_port": port, "rollout_model": {"api_key": KEY}},
    )
    async with model_free_stack(root / "stack") as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        served = Served(stack, root, experiment, f"http://127.0.0.1:{port}")
        async with asyncio.timeout(SECONDS):
            while not await _answers(served):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        yield served


async def _answers(served: Served) -> bool:
    try:
        return (await served.post("/sessions", {"name": "first"})).is_success
    except httpx.TransportError:
        return False


async def ask(client: TrinityClient, asked: Any, **options: Any) -> Any:
    async with client.get_openai_async_client() as model:
        messages: Any = [{"role": "user", "content": asked}]
        return await model.chat.completions.create(model="", messages=messages, **options)


async def test_what_clients_reward_and_commit_is_trained_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=2) as served:
        client = await served.client("one")
        other = TrinityClient(client.proxy_url)
        assert client.alive() and not TrinityClient(f"{served.url}/sessions/no").alive()
        told = [await ask(client, text) for text in ("a", "a", "b")]
        several = await ask(other, "c", n=2)
        assert await client.feedback_async(1.0, [told[0].id]) == {"status": "success"}
        assert (await client.feedback_async(0.5, [told[1].id]))["status"] == "success"
        await client.feedback_async(0.0, [told[0].id])  # the first one stays
        await other.feedback_async(0.25, [several.id])
        metrics = await client.get_metrics_async()
        assert metrics["rollout/ready_experience_count"] == 4
        assert metrics["rollout/total_experience_count"] == 5
        committed = await client.commit_async()
        assert committed == {
            "status": "success",
            "explore_step": 1,
            "groups": 2,
            "calls": 3,
        }
        again = await served.post(
            f"{client.proxy_url.removeprefix(served.url)}/feedback",
            {"reward": 1, "msg_ids": [told[0].id], "task_id": "x"},
        )
        assert again.status_code == 409 and "is committed" in again.json()["error"]["message"]
        # What has no reward yet stays for a later commit, and the group is another one.
        more = [await ask(client, "d") for _ in range(3)]
        for answer, reward in zip([told[2], *more], (2.0, 3.0, 4.0, 5.0), strict=True):
            await client.feedback_async(reward, [answer.id])
        assert (await client.commit_async())["calls"] == 4
        assert (await client.commit_async())["calls"] == 0
        ended = await wait_until_ended(served.stack.addresses.synchronizer, served.experiment.id)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        assert served.trained() == [
            (1, 0.25, 2),
            (1, 0.5, 1),
            (1, 1.0, 1),
            (2, 2.0, 1),
            (2, 3.0, 1),
            (2, 4.0, 1),
            (2, 5.0, 1),
        ]


def test_the_client_has_the_place_of_trinity_rft() -> None:
    module = importlib.import_module("trinity.explorer.proxy.client")
    assert module.TrinityClient is TrinityClient


async def test_who_has_no_right_to_a_session_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=1) as served:
        client, other = await served.client("one"), await served.client("other")
        own, others = (one.proxy_url.removeprefix(served.url) for one in (client, other))
        answer = await ask(client, "a")
        foreign = {"reward": 1, "msg_ids": [answer.id], "task_id": "t"}
        cases = [
            ("/sessions", {"name": "x"}, "another key", 401, "bearer token"),
            ("/sessions", {}, KEY, 400, "give the session a `name`"),
            ("/feedback", foreign, KEY, 404, "give its `proxy_url` to the client"),
            (f"{own[:-1]}z/commit", None, KEY, 404, "open one by its name"),
            (f"{own}/feedback", {"reward": True, "msg_ids": [answer.id]}, KEY, 400, "no number"),
            (f"{own}/feedback", {**foreign, "reward": 10**400}, KEY, 400, "too large"),
            (f"{own}/feedback", {"reward": 1, "msg_ids": ["chatcmpl-1"]}, KEY, 404, "of no answer"),
            (
                f"{others}/feedback",
                foreign,
                KEY,
                404,
                "no answer",
            ),
        ]
        for path, body, key, status, words in cases:
            refused = await served.post(path, body, key)
            assert (refused.status_code, words in refused.text) == (status, True), refused.text
        await client.feedback_async(1.0, [answer.id])
        assert "single answer" in (await client.commit_async())["warning"]


async def test_a_session_outlasts_its_explorer(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=1) as served:
        client = await served.client("one")
        answers = [await ask(client, PICTURE) for _ in range(2)]
        await client.feedback_async(1.0, [answers[0].id])
        pid = served.stack.pids["explorer"]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            while served.stack.pids["explorer"] == pid or not client.alive():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        again = await ask(client, PICTURE)
        assert again.id == answers[1].id, "the one that may not have been received"
        further = [await ask(client, PICTURE) for _ in range(2)]
        assert len({answer.id for answer in (*answers, *further)}) == 4
        for answer in (again, *further):
            await client.feedback_async(0.5, [answer.id])
        assert (await client.commit_async())["calls"] == 4
        ended = await wait_until_ended(served.stack.addresses.synchronizer, served.experiment.id)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        assert served.trained() == [(1, 0.5, 3), (1, 1.0, 1)]
        [(stored, num_segments)] = served.images()
        assert (stored, num_segments > 0) == (SEEN, True), "the image that was trained, once"
