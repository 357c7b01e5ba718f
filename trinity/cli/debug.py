"""`trinity debug`: an engine that stays, and a workflow on a few tasks against it."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trinity.cli.overrides import (
    FileOption,
    WordsArgument,
    parse_overrides,
    refuse_ignored,
    split_words,
)
from trinity.cli.run import AdoptedOption, PluginDirOption, plugin_words, use_plugins

SERVICE = "services.explorer.debug"
OUTPUT_NAME = "experiences.jsonl"


class DebugModule(StrEnum):
    """A part that `trinity debug` starts."""

    INFERENCE_MODEL = "inference_model"
    WORKFLOW = "workflow"
    VIEWER = "viewer"


ModuleOption = Annotated[
    DebugModule,
    typer.Option(
        "--module",
        "-m",
        help="`inference_model` starts the engine and stays; `workflow` runs a workflow on it; "
        "`viewer` shows the experiences of runs in a browser.",
        show_default=False,
    ),
]
OutputFileOption = Annotated[
    Path | None,
    typer.Option(
        "--output-file", "--output_file", help="JSON lines: the experiences of the workflow."
    ),
]
OutputDirOption = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", "--output_dir", "-o", help=f"The same in a folder, as {OUTPUT_NAME}."
    ),
]
NUM_TASKS = 2
NumTasksOption = Annotated[
    int | None,
    typer.Option(
        "--num-tasks", "-n", min=1, help=f"Tasks to run, from --first-row on; else {NUM_TASKS}."
    ),
]
FirstRowOption = Annotated[
    int | None, typer.Option("--first-row", min=0, help="Row of the first task, else 0.")
]
RepeatOption = Annotated[
    int | None,
    typer.Option("--repeat-times", min=1, help="Runs of a task; without it at most two."),
]
TasksetOption = Annotated[
    str, typer.Option("--taskset", help="Name of the taskset; without it the first one.")
]
StageOption = Annotated[
    str, typer.Option("--stage", help="Name of the stage; without it the first with a workflow.")
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65_535,
        help="The port of the viewer, else that of `trinity studio`; 0 for any.",
    ),
]


def debug(
    module: ModuleOption,
    words: WordsArgument = None,
    config: FileOption = None,
    output_file: OutputFileOption = None,
    output_dir: OutputDirOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
    num_tasks: NumTasksOption = None,
    first_row: FirstRowOption = None,
    repeat_times: RepeatOption = None,
    taskset: TasksetOption = "",
    stage: StageOption = "",
    port: PortOption = None,
) -> None:
    """Try a workflow without a run: start the engine once, then the workflow as often as needed.

    Nothing is trained or stored; both use the same file, and need no database and no broker.
    """
    file, overrides = split_words(words, config, "trinity debug")
    of_workflow = {
        "--output-file": output_file,
        "--output-dir": output_dir,
        "--num-tasks": num_tasks,
        "--first-row": first_row,
        "--repeat-times": repeat_times,
        "--taskset": taskset,
    }
    use_plugins(plugin_dir, adopted)
    if module is not DebugModule.WORKFLOW:
        refuse_ignored(f"--module {module}", of_workflow)
    if module is DebugModule.VIEWER:
        refuse_ignored(f"--module {module}", {"--stage": stage})
        _view(file, parse_overrides(overrides), port)
        return
    refuse_ignored(f"--module {module}", {"--port": port})
    if output_dir is not None:
        refuse_ignored("--output-dir", {"--output-file": output_file})
        output_file = output_dir / OUTPUT_NAME
    common = _words(file, overrides, stage)
    plugins = plugin_words(plugin_dir, adopted)
    asked = {
        "module": module.value,
        "config": str(file),
        "overrides": parse_overrides(overrides),
        "stage": stage,
        "workflow_command": shlex.join([*_command(DebugModule.WORKFLOW), *common, *plugins]),
        "engine_command": shlex.join([*_command(DebugModule.INFERENCE_MODEL), *common]),
        "trial": {
            "taskset": taskset,
            "first_row": first_row or 0,
            "num_tasks": num_tasks or NUM_TASKS,
            "repeat_times": repeat_times,
            "output_file": str(output_file or ""),
        },
    }
    _become_service(asked)


def _become_service(asked: Mapping[str, object]) -> None:
    from trinity.runtime.process.child_process import module_command  # imports asyncio

    argv = module_command(SERVICE, json.dumps(asked))
    sys.stdout.flush()
    os.execv(argv[0], argv)  # the terminal is the workflow's: a breakpoint works


def _view(config: Path, overrides: dict[str, Any], port: int | None) -> None:
    """Opens Studio on the file's run and the others in its folder."""
    from trinity.cli.studio import DEFAULT_PORT, studio  # slow to import, as the next ones
    from trinity.config.check import plan_config, raise_errors
    from trinity.config.loading.load import read_config, require_runnable

    reading = read_config(config, overrides)
    raise_errors(reading)
    plan = plan_config(require_runnable(reading), reading.source)
    studio([plan.job_path.parent], DEFAULT_PORT if port is None else port)


def _command(module: DebugModule) -> list[str]:
    return ["trinity", "debug", "--module", module.value]


def _words(config: Path, overrides: list[str], stage: str) -> list[str]:
    return ["--config", str(config), *(["--stage", stage] if stage else []), *overrides]
