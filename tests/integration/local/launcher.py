"""A launcher to be killed: starts a stack with stand-ins, says who runs, and waits.

python -m tests.integration.local.launcher <job directory>
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.integration.local.stacks import read_pid, serving
from trinity.run.local.infrastructure import ExternalServers, ProcessWithProbe
from trinity.run.local.services import StackContext
from trinity.run.local.stack import LocalStack


async def launch(job_dir: Path) -> None:
    grandchild, forked = job_dir / "grandchild", job_dir / "forked"

    def services(around: StackContext) -> list[ProcessWithProbe]:
        return [
            serving(around, "buffer", "--grandchild", str(grandchild), "--forked", str(forked)),
            serving(around, "trainer", "--ignore-term"),
        ]

    async with LocalStack(job_dir=job_dir, externals=ExternalServers(), services=services) as stack:
        pids = [*stack.pids.values(), read_pid(grandchild), read_pid(forked)]
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(launch(Path(sys.argv[1])))
