"""Weights that change amid requests, over real services: stored samples know who drew them."""

from pathlib import Path

import psycopg
import pytest

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.slots import JOURNAL_VARIABLE, wrong_tokens
from tests.support.model_free.stack import MODULES, model_free_stack
from trinity.api.v1 import experience_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.data.codec import experience_from_proto
from trinity.runtime.security.secret_files import SecretFiles
from trinity.types import Experience

pytestmark = pytest.mark.timeout(600)

MODULES_WITH_SLOTS = MODULES | {"explorer": "tests.support.model_free.slots_explorer"}


def stored_samples(dsn: str) -> list[Experience]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT body FROM buffer.payload").fetchall()
    return [experience_from_proto(experience_pb2.Experience.FromString(row[0])) for row in rows]


def digests(journal: Path, first: bytes) -> dict[tuple[int, int], bytes]:
    """By version and incarnation, which directories are named after."""
    found = {(0, 0): first}
    for line in journal.read_text().splitlines():
        name, digest = line.split()
        version, incarnation = name.removeprefix("v").split("-")[:2]
        found[int(version), int(incarnation)] = bytes.fromhex(digest)
    return found


def is_wrong(sample: Experience, by_version: dict[tuple[int, int], bytes]) -> bool:
    assert sample.sampling is not None
    return bool(
        wrong_tokens(
            sample.sequence.tokens.tolist(),
            sample.sequence.prompt_length,
            sample.version_spans,
            sample.sampling.seed,
            lambda span: by_version[span.version, span.incarnation],
        )
    )


async def test_rollouts_go_on_while_weights_change_and_each_token_knows_its_version(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    plan = experiment_plan(
        tmp_path,
        buffer={
            "total_steps": 12,
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(tmp_path / "run.jsonl")}]
            },
        },
        model={"max_prompt_tokens": 100, "max_response_tokens": 200, "max_model_len": 300},
        explorer={"eval_interval": 4},
        synchronizer={"sync_style": "fully_async"},
    )
    stack = model_free_stack(
        plan.job_path,
        modules=MODULES_WITH_SLOTS,
        environment={"explorer": {JOURNAL_VARIABLE: str(journal)}},
    )
    async with stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        secrets = SecretFiles(plan.job_path / "infra" / "secrets").folder
        samples = stored_samples((secrets / "buffer-postgres-dsn").read_text().strip())
    by_version = digests(journal, b"")
    assert not any(is_wrong(sample, by_version) for sample in samples)
    assert sum(len(sample.version_spans) > 1 for sample in samples) > 0
