"""A launcher to be killed: brings up the broker and the database of a directory, and waits.

python -m tests.integration.restarts.launcher <job directory>
"""

import asyncio
import sys
from pathlib import Path

from tests.integration.local.stacks import no_services
from trinity.run.local.stack import LocalStack


async def launch(job_dir: Path) -> None:
    async with LocalStack(job_dir=job_dir, services=no_services):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(launch(Path(sys.argv[1])))
