"""Digests lead from the weights to what the engine wrote down of its answers; others are found."""

import json
import re
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from tests.integration.inspect.conftest import trinity
from tests.support import origin_by_hand as by_hand
from tests.support.model_free.ended_run import EndedRun
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import experience_pb2 as pb
from trinity.runtime.security.secret_files import SecretFiles

pytestmark = pytest.mark.timeout(400)
LAST, STAGE = 8, "rft"
FIRST_TOKEN = bytes([77, 0, 0, 0])


def answered(log: Path) -> set[str]:
    """Digests of the answers, by the engine's own log."""
    found = set()
    for line in log.read_text().splitlines():
        weights, prompt, tokens, logprobs = json.loads(line)
        numbers = re.fullmatch(r"v(\d+)-(\d+)", weights)
        assert numbers is not None, weights
        span = (0, len(tokens), int(numbers[1]), int(numbers[2]))
        content = by_hand.content(prompt, tokens, logprobs, [span])
        found.add(by_hand.turn(by_hand.ZEROS, content).hex())
    return found


async def verified(job: Path, version: int = LAST) -> tuple[list[dict[str, Any]], list[str], int]:
    """Rows, differences and the exit code."""
    words = ("lineage", str(version), "--verify", "--json")
    out, _, error = await trinity(*words, job_dir=job)
    lines = [json.loads(line) for line in out.splitlines()]
    differs = [str(line["differs"]) for line in lines if "differs" in line]
    assert error is None or isinstance(error, SystemExit | typer.Exit), error
    code = 0 if error is None else int(getattr(error, "code", getattr(error, "exit_code", -1)))
    return [line for line in lines if "id" in line], differs, code


async def test_weights_lead_to_what_the_engine_was_asked_and_answered(
    ended_run: EndedRun, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    async with model_free_stack(job):
        rows, differs, code = await verified(job)
        assert (differs, code) == ([], 0)
        out, _, _ = await trinity("lineage", str(LAST), "--verify", job_dir=job)
        assert out == "steps 1 to 8: 64 rows with 64 turns: 64 matches\n"
        out, _, _ = await trinity("view", rows[0]["id"], job_dir=job)
        assert f"digest       {rows[0]['sha256']}" in out
    assert {row["state"] for row in rows} == {"matches"}
    assert all(row["turn_sha256"] == [row["sha256"]] for row in rows)
    made = answered(ended_run.engine_log)
    assert {row["sha256"] for row in rows} <= made
    version = by_hand.ZEROS
    for _, batch in groupby(reversed(rows), lambda row: row["train_step"]):
        ordered = sorted(batch, key=lambda row: row["place"])
        digests = [bytes.fromhex(row["sha256"]) for row in ordered]
        version = by_hand.version(version, by_hand.batch(digests))
    [folder] = (job / "stages" / STAGE / "weights").glob(f"v{LAST}-*")
    assert json.loads((folder / "lineage.json").read_text())["lineage_sha256"] == version.hex()


SPOILS = """
UPDATE batch_item SET row_sha256 = sha256('x') WHERE step = 2 AND position = 1;
UPDATE batch SET lineage_sha256 = sha256('x') WHERE step = 3;
UPDATE version SET lineage_sha256 = sha256('x') WHERE version = 5;
UPDATE experience SET turn_sha256 = sha256('x') WHERE experience_id =
    (SELECT experience_id FROM batch_item WHERE step = 6 AND position = 0);
DELETE FROM payload WHERE payload_id = (SELECT payload_id FROM experience JOIN batch_item
    USING (experience_id) WHERE batch_item.step = 7 AND batch_item.position = 2);
"""
OF_PAYLOAD = """
SELECT payload_id, body FROM payload WHERE payload_id = (SELECT payload_id FROM experience
    JOIN batch_item USING (experience_id) WHERE batch_item.step = 8 AND batch_item.position = 3)
"""


def spoil(dsn: str) -> None:
    """Changes a record of each kind."""
    with psycopg.connect(dsn) as connection:
        for statement in SPOILS.split(";\n")[:-1]:
            assert connection.execute(statement).rowcount == 1, statement
        row = connection.execute(OF_PAYLOAD).fetchone()
        assert row is not None
        message = pb.Experience.FromString(row[1])
        tokens = message.sequence.tokens
        tokens.data = FIRST_TOKEN + tokens.data[len(FIRST_TOKEN) :]
        changed = message.SerializeToString()
        connection.execute("UPDATE payload SET body = %s WHERE payload_id = %s", (changed, row[0]))


async def test_every_record_that_was_changed_is_named_and_deleted_samples_are_not(
    ended_run: EndedRun, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    async with model_free_stack(job):
        before, _, _ = await verified(job)
        why = ("--reason", "a test", "--yes")
        await trinity("delete", "step=1", *why, job_dir=job)
        rows, differs, code = await verified(job)
        assert (differs, code) == ([], 0)
        gone = [row for row in rows if row["state"] == "deleted"]
        assert [row["train_step"] for row in gone] == [1] * 8
        assert [row["sha256"] for row in rows] == [row["sha256"] for row in before]
        out, _, _ = await trinity("lineage", "1", "--verify", job_dir=job)
        assert out.splitlines()[0] == "steps 1 to 1: 8 rows with 8 turns: 8 deleted"
        assert out.splitlines()[1].endswith(f"deleted, its digest {gone[0]['sha256']}")
        secrets = SecretFiles(job / "infra" / "secrets").folder
        dsn = (secrets / "buffer-postgres-dsn").read_text().strip()
        spoil(dsn)
        [folder] = (job / "stages" / STAGE / "weights").glob(f"v{LAST}-*")
        kept = (folder / "lineage.json").read_text()
        (folder / "lineage.json").write_text(
            kept.replace('"lineage_sha256":"', '"lineage_sha256": "')
        )
        _, differs, code = await verified(job)
    names = {(row["train_step"], row["place"]): row["id"] for row in before}
    expected = [
        f"{folder / 'lineage.json'} has changed: it does not match its manifest",
        f"step 8, row 3, sample {names[8, 3]}: turn 1:",
        f"step 7, row 2, sample {names[7, 2]}: its content is missing",
        f"step 6, row 0, sample {names[6, 0]}: its last turn:",
        f"step 6, row 0, sample {names[6, 0]}: turn 1:",
        "version 5: the digest by its trainer:",
        "step 4: the digest of all batches:",
        "step 3: the digest of all batches:",
        "version 3: the digest by its trainer:",
        "step 2: the digest of its rows:",
        f"step 2, row 1, sample {names[2, 1]}: its last turn:",
    ]
    assert code == 1
    assert len(differs) == len(expected)
    for said, wanted in zip(differs, expected, strict=True):
        assert said.startswith(wanted)
