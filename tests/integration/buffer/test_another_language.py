"""A client in another language works from the published protos alone: the example in JavaScript."""

import asyncio
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.integration.buffer.process import BufferProcess
from trinity.client import AsyncTasksets

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/submitted_tasks/node"
pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="there is no node and npm")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its packages, beside the protos."""
    root = tmp_path_factory.mktemp("published")
    shutil.copytree(ROOT / "proto", root / "proto")
    own = shutil.copytree(EXAMPLE, root / "examples/submitted_tasks/node")
    install = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=own, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"its packages cannot be installed: {installed.stderr.strip()[:300]}")
    return own / "submit.mjs"


async def test_javascript_submits_tasks_and_hears_of_each_row(
    client: Path, process: BufferProcess, tmp_path: Path
) -> None:
    tenant, request_id = uuid.uuid4().hex, str(uuid.uuid4())
    rows = [json.dumps({"prompt": f"{i}+{i}"}) for i in range(1_200)]
    rows[700] = "[1]"
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(rows))

    async def submit() -> str:
        return await submitted(client, process, file, tenant=tenant, request_id=request_id)

    first = await submit()
    assert "1199 rows stored, 1 refused" in first
    assert "row 700: a row must be" in first
    assert "sums: 1199 rows, STATE_COMPLETE" in first
    assert await submit() == first
    async with AsyncTasksets(process.address, tenant=tenant) as tasksets:
        found = await tasksets.get("sums", num_rows=2)
    assert found.rows == ({"prompt": "0+0"}, {"prompt": "1+1"})


async def test_javascript_says_how_many_more_were_refused_than_are_told(
    client: Path, process: BufferProcess, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("[1]\n" * 1_003 + json.dumps({"prompt": "1+1="}) + "\n")
    said = await submitted(
        client, process, file, tenant=uuid.uuid4().hex, request_id=str(uuid.uuid4())
    )
    assert "1 rows stored, 1003 refused\n" in said
    assert said.count("a row must be a JSON object") == 1_000
    assert "\n  and 3 more\n" in said


async def submitted(
    client: Path, process: BufferProcess, file: Path, *, tenant: str, request_id: str
) -> str:
    """What the example prints of these tasks."""
    command = ["node", str(client), process.address, "sums", str(file), request_id]
    environment = os.environ | {"TRINITY_TENANT": tenant}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
