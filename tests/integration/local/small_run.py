"""A whole small run without a model, in a process of its own.

python -P -m tests.integration.local.small_run FOLDER
"""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.run.launch.run import LocalRun
from trinity.run.progress.reporter import make_reporter
from trinity.runtime.proxies import reach_loopback_directly

STEPS = 2


def main(folder: Path) -> None:
    """Runs it to its end, and says what it ran as."""
    reach_loopback_directly()  # as `trinity run` does
    plan = experiment_plan(folder, buffer={"total_steps": STEPS}, monitor={"monitor_type": "none"})
    run = LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())
    asyncio.run(run.run_to_end())
    sys.stdout.write(f"ran as {os.geteuid()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
