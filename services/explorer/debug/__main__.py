"""Starts what `trinity debug` asks for: python -m services.explorer.debug <JSON>"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from services.explorer.engine.vllm import start_vllm
from services.explorer.engines import StartEngine
from trinity.config.check import plan_config, raise_errors
from trinity.config.loading.load import read_config, require_runnable
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import TrinityError, UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.interpreter import check_interpreter
from trinity.runtime.logs import configure_logging
from trinity.runtime.proxies import reach_loopback_directly

USER_ERROR = 2
FAILURE = 1
INTERRUPTED = 130


def main(start_engine: StartEngine = start_vllm) -> int:
    """Runs one of both modules; returns the exit code."""
    reach_loopback_directly()
    try:
        check_interpreter()
        return _run(json.loads(sys.argv[1]), start_engine)
    except UserError as error:
        sys.stderr.write(f"trinity: {error}\n")
        return USER_ERROR
    except TrinityError as error:
        sys.stderr.write(f"trinity: {error}\n")
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(asked: dict[str, Any], start_engine: StartEngine) -> int:
    plan = _plan(Path(asked["config"]), asked["overrides"])
    stage = _stage(plan, asked["stage"])
    configure_logging("debug", stage.config.log.level, "text")
    if asked["module"] == "inference_model":
        from services.explorer.debug.engine import run_engine

        asyncio.run(run_engine(stage, asked["workflow_command"], start_engine))
        return 0
    from services.explorer.debug.workflow import TrialOptions, try_workflow

    load_plugins(plugin_dirs_from_environment())
    options = TrialOptions(**asked["trial"])
    return asyncio.run(try_workflow(stage, options, plan.seed, asked["engine_command"]))


def _plan(path: Path, overrides: dict[str, Any]) -> ExperimentPlan:
    reading = read_config(path, overrides)
    raise_errors(reading)
    return plan_config(require_runnable(reading), reading.source)


def _stage(plan: ExperimentPlan, name: str) -> StagePlan:
    """Returns the stage of this name, or the first one that asks the model."""
    asks = {stage.name: stage for stage in plan.stages if stage.needs_rollout}
    if name and name not in asks:
        raise UserError(f"no stage {name!r} runs a workflow: give one of {', '.join(asks) or '-'}")
    if not asks:
        raise UserError("no stage of the file runs a workflow: all of them train on data")
    return asks[name] if name else next(iter(asks.values()))


if __name__ == "__main__":
    sys.exit(main())
