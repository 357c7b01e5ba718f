"""Sessions: time and size of a stored turn, and the memory of an open session.

python -m benchmarks.sessions [--turns 300] [--sessions 5000] [--json FILE]

All over real services with an engine that answers at once. A turn's cost is that of a call within a
session: processor time of explorer and buffer, less the time that both take when idle; one call
at a time, and 16 at once, which share messages and transactions. What it adds to the latency is the
difference to calls that are not kept, one at a time.
The bytes are those in the database, over 4 for an id, 4 for a log-probability and 1 for the mask of
each token, and the text. Sessions are open when each has answered, and some of all ages go on;
their memory is the most that the explorer has while they are opened, less the memory before.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from benchmarks.sessions.explorer import FIRST_WORD, text_of, words
from benchmarks.table import PerformanceClaim, print_claims
from tests.support.model_free.experiment import experiment_plan, start_experiment
from tests.support.model_free.stack import MODULES, model_free_stack
from trinity.run.local.stack import LocalStack
from trinity.runtime.security.secret_files import SecretFiles

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "a key"
SECONDS = 600.0
HISTORY, NEW = 2_000, 100
LONG_TURNS, LONG_NEW = 40, 500
CONTEXT, AT_ONCE = 8_000, 256
SOME, OPEN = 16, 5_000
STORED = """
    SELECT sum(octet_length(p.body)) FROM turn t
    JOIN session s ON s.session_id = t.session_id AND s.client = 'long'
    JOIN payload p ON p.payload_id = t.turn_id
"""


@dataclass(slots=True)
class MeasuredServices:
    """The services, and a client of them."""

    stack: LocalStack
    root: Path
    http: httpx.AsyncClient

    async def session(self, name: str) -> str:
        """Opens a session, and returns the path of its calls."""
        answer = await self.http.post("/sessions", json={"name": name})
        return f"{httpx.URL(answer.raise_for_status().json()['proxy_url']).path}/v1"

    async def ask(self, path: str, chat: list[str], num_tokens: int) -> str:
        """Returns the answer to a chat of a user and the assistant by turns."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(chat)]
        body = {"messages": messages, "max_tokens": num_tokens}
        answer = await self.http.post(f"{path}/chat/completions", json=body)
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    def processor_seconds(self) -> float:
        """Returns the time that explorer and buffer have used so far."""
        used = 0.0
        for name in ("explorer", "buffer"):
            process = psutil.Process(self.stack.pids[name])
            for part in (process, *process.children(recursive=True)):
                times = part.cpu_times()
                used += times.user + times.system
        return used

    def explorer_bytes(self) -> int:
        """Returns the memory of the explorer's process."""
        return int(psutil.Process(self.stack.pids["explorer"]).memory_full_info().uss)

    def query(self, statement: str) -> int:
        """Returns a number of the buffer's database."""
        folder = SecretFiles(self.root / "stack" / "infra" / "secrets").folder
        with psycopg.connect((folder / "buffer-postgres-dsn").read_text().strip()) as connection:
            row = connection.execute(statement).fetchone()
        return int(row[0]) if row else 0


@contextlib.asynccontextmanager
async def _serving(root: Path) -> AsyncIterator[MeasuredServices]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    plan = experiment_plan(
        root,
        model={"max_prompt_tokens": 40_000, "max_response_tokens": 1_000},
        buffer={
            "explorer_input": {
                "default_workflow_type": "clients",
                "default_reward_fn_type": None,
                "taskset": {"name": "clients", "path": None, "storage_type": "queue"},
            },
        },
        synchronizer={"sync_offset": 1},
        explorer={"proxy_port": port, "rollout_model": {"api_key": KEY}},
    )
    modules = {**MODULES, "explorer": "benchmarks.sessions.explorer"}
    async with (
        model_free_stack(root / "stack", modules=modules) as stack,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=SECONDS,
            limits=httpx.Limits(max_connections=AT_ONCE),
        ) as client,
    ):
        await start_experiment(stack.addresses.synchronizer, plan)
        served = MeasuredServices(stack, root, client)
        async with asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await served.ask(await served.session("first"), ["0010"], 4)
                    break
                await asyncio.sleep(0.2)
        yield served


async def _turn(served: MeasuredServices, number: int) -> dict[str, Any]:
    """Measures recorded turns and others, one at a time and some at once."""
    path = await served.session("short")
    chat = [text_of(words("history", HISTORY - NEW))]
    chat += [await served.ask(path, chat, NEW)]
    idle_from = served.processor_seconds()
    await asyncio.sleep(idle_seconds := 10.0)
    idle = (served.processor_seconds() - idle_from) / idle_seconds

    async def cost(place: str, at_once: int) -> tuple[float, float]:
        seconds: list[float] = []

        async def ask_in_turn(first: int) -> None:
            for i in range(first, number, at_once):
                started = time.perf_counter()
                await served.ask(place, [*chat, text_of(words((place, at_once, i), 20))], NEW)
                seconds.append(time.perf_counter() - started)

        before, begun = served.processor_seconds(), time.perf_counter()
        await asyncio.gather(*(ask_in_turn(first) for first in range(at_once)))
        busy = served.processor_seconds() - before - idle * (time.perf_counter() - begun)
        return 1000 * busy / number, 1000 * statistics.median(seconds)

    kept, others, some = await cost(path, 1), await cost("/v1", 1), await cost(path, SOME)
    return {
        "processor_milliseconds": kept[0],
        "processor_milliseconds_not_kept": others[0],
        "processor_milliseconds_some_at_once": some[0],
        "added_milliseconds": kept[1] - others[1],
        "median_milliseconds": kept[1],
        "idle_processor_share": idle,
    }


async def _bytes(served: MeasuredServices) -> dict[str, Any]:
    """Stores a long conversation, and compares its size with that of its parts."""
    path, chat, num_tokens, num_sampled = await served.session("long"), list[str](), 0, 0
    for i in range(LONG_TURNS):
        asked = words(("asked", i), 20)
        chat.append(text_of(asked))
        chat.append(await served.ask(path, chat, LONG_NEW))
        num_tokens += len(asked) + 3 + LONG_NEW
        num_sampled += LONG_NEW
    plain = 4 * num_tokens + 5 * num_sampled + sum(map(len, chat))
    stored = served.query(STORED)
    return {"stored_bytes": stored, "plain_bytes": plain, "ratio": stored / plain}


async def _memory(served: MeasuredServices, number: int) -> dict[str, Any]:
    """Opens sessions with a long prompt, `AT_ONCE` asking at a time; some of all ages go on."""
    before, begun = served.explorer_bytes(), time.perf_counter()
    peak, waiting, prompt = before, asyncio.Semaphore(AT_ONCE), words("open", CONTEXT - NEW - 1)
    answered: dict[int, tuple[str, list[str]]] = {}

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, await asyncio.to_thread(served.explorer_bytes))
            await asyncio.sleep(0.5)

    async def open_one(i: int) -> None:
        async with waiting:
            path = await served.session(f"open {i}")
            chat = [text_of([FIRST_WORD + i, *prompt])]
            answered[i] = path, [*chat, await served.ask(path, chat, NEW)]

    async def go_on(path: str, chat: list[str]) -> int:
        await served.ask(path, [*chat, text_of(words("more", 20))], NEW)
        told = await served.http.get(f"{path.removesuffix('/v1')}/metrics")
        return int(told.json()["rollout/total_experience_count"])

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(open_one(i) for i in range(number)))
    seconds, after = time.perf_counter() - begun, served.explorer_bytes()
    asked = [answered[i] for i in range(0, number, -(-number // AT_ONCE))]
    turns = await asyncio.gather(*(go_on(*own) for own in asked))
    watching.cancel()
    return {
        "open": len(answered) if set(turns) == {2} else 0,
        "kilobytes_each": (after - before) / number / 1000,
        "peak_kilobytes_each": (peak - before) / number / 1000,
        "went_on": len(turns),
        "seconds": seconds,
    }


async def _measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="trinity-sessions-") as root:
        async with _serving(Path(root)) as served:
            return {
                "turn": await _turn(served, arguments.turns),
                "bytes": await _bytes(served),
                "memory": await _memory(served, arguments.sessions),
            }


def _claims(found: dict[str, dict[str, Any]]) -> list[PerformanceClaim]:
    claim: Callable[..., PerformanceClaim] = PerformanceClaim
    turn, memory = found["turn"], found["memory"]
    return [
        claim("a kept turn, processor ms", turn["processor_milliseconds"], 4.0, "<="),
        claim(f"the same, {SOME} at once", turn["processor_milliseconds_some_at_once"], 4.0, "<="),
        claim("latency that keeping adds, ms (median)", turn["added_milliseconds"], 25.0, "<="),
        claim("bytes of 40 turns over their content", found["bytes"]["ratio"], 1.3, "<="),
        claim("sessions open at once", memory["open"], OPEN, ">="),
        claim("memory of each at most, kB", memory["peak_kilobytes_each"], 100.0, "<="),
    ]


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=OPEN)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/sessions.json")
    arguments = parser.parse_args()
    load = os.getloadavg()
    found = asyncio.run(_measure(arguments))
    claims = _claims(found)
    print_claims(claims)
    record = {
        "claims": [claim.as_json() for claim in claims],
        **found,
        "machine": {"load_average": load, "num_cores": os.cpu_count()},
    }
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
