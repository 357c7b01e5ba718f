"""`trinity`: the commands, and the exit codes of their errors."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

import trinity
from trinity.errors import ServiceNotReady, TrinityError, UserError
from trinity.runtime.control_characters import guard_terminal
from trinity.runtime.interpreter import check_interpreter_for_models
from trinity.runtime.proxies import reach_loopback_directly

GC_THRESHOLD = 100_000
"""Imports make many objects and no garbage; collections took a tenth of a short command."""
WITHOUT_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
"""For `trinity config`: pydantic would read the entry points of all packages, for a tenth of it."""
USER_ERROR = 2
FAILURE = 1
NO_ANSWER = 3
INTERRUPTED = 130

FOR_MODELS = ("debug", "demo", "retrain", "run")
"""Commands that start a model; all others also run on newer versions of Python."""
COMPLETE_SUFFIX = "TRINITY_COMPLETE"
"""Ends the variable that a shell sets to have a line completed."""

COMMANDS = {
    "demo": "Watch a small model learn to add: installs what is missing.",
    "setup": "Install what runs models on CPUs or GPUs, or an extra.",
    "example": "Write an example into the current folder.",
    "run": "Run an experiment, or resume one that stopped.",
    "studio": "Show runs in a browser, and write configurations there.",
    "adopt": "Take the parts of a fork of Trinity-RFT.",
    "debug": "Try a workflow on a few tasks, against an engine that stays.",
    "ls": "List the runs below a directory, or a deployment's experiments.",
    "status": "Show a run's stages, its members and what each waits for.",
    "log": "Show, follow and filter the logs of a run's processes.",
    "why": "Show what holds a run up, and what to do.",
    "view": "List the experiences of a run, or show one in full.",
    "lineage": "Show the experiences of a train step, with their weights and tasks.",
    "export": "Write experiences as parquet or as a `datasets` directory.",
    "push-to-hub": "Publish the best version of a run, with a model card.",
    "feedback": "Give a reward that came later.",
    "exclude": "Keep experiences from being trained on.",
    "include": "Allow excluded experiences to be trained on again.",
    "delete": "Delete experiences that no step may need again.",
    "retrain": "Train again on the batches that a run has stored.",
    "certs": "Make certificates and tokens for a system beyond this machine.",
    "token": "Issue a token for a person or a program.",
    "version": "Show the versions of everything that can change a result.",
}
"""Command to its help line; a command is the function of that name in the module of that name."""

MODULES = {
    **dict.fromkeys(("exclude", "include", "delete"), "curation"),
    **dict.fromkeys(("setup", "example", "demo"), "first_steps"),
}
"""Commands that share a module."""

THEIRS = {
    "convert": "the weights of a run are in Hugging Face's layout, in `stages/STAGE/weights` of "
    "its directory; a checkpoint of Trinity-RFT is converted by `python -m verl.model_merger merge "
    "--backend fsdp --local_dir DIR/global_step_100/actor --target_dir OUT`",
    "perf": "`trinity run FILE --max-steps 5` tries a file for some steps, and the times that "
    "docs/observability.md lists are in its monitor",
}
"""Commands that only Trinity-RFT has, with their replacement here."""

GROUPS = {
    "config": "Check, resolve, explain and write configurations.",
    "context": "Name the addresses and tokens of deployments.",
    "deploy": "Write manifests and secrets, and start an experiment on running services.",
    "taskset": "Submit, list, show, close and delete tasksets.",
}
"""Groups of commands with their help lines; each is the `app` of the module of that name."""

IN_GROUPS = {
    "config": {
        "plan": "Show what would run where, its volume, and whether the memory suffices.",
        "from-verl": "Convert a configuration of veRL to one of this system.",
    }
}
"""Commands of a group that have separate modules, such as `config_plan`."""


def make_app(words: Sequence[str]) -> typer.Typer:
    """Returns the commands; only the one that `words` choose is imported, others are help lines."""
    chosen = words[0] if words else None
    app = typer.Typer(
        help="Reinforcement fine-tuning of language models.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        function = name.replace("-", "_")
        module = MODULES.get(name, function)
        command = vars(_module(module))[function] if name == chosen else _placeholder
        app.command(name, help=None if name == chosen else summary, short_help=summary)(command)
    for name, summary in GROUPS.items():
        group = vars(_module(name))["app"] if name == chosen else typer.Typer()
        if name != chosen:
            group.command("show")(_placeholder)
        _add_own_modules(group, name, words)
        app.add_typer(group, name=name, help=summary)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"trinity {trinity.__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Options in front of a command."""


def _add_own_modules(group: typer.Typer, name: str, words: Sequence[str]) -> None:
    for command, summary in IN_GROUPS.get(name, {}).items():
        is_chosen = list(words[:2]) == [name, command]
        function = command.replace("-", "_")
        call = vars(_module(f"{name}_{function}"))[function] if is_chosen else _placeholder
        group.command(command, help=None if is_chosen else summary)(call)


def app(*, standalone_mode: bool = True) -> None:
    """Runs the command that the process was started with."""
    words = [word for word in _written_words() if not word.startswith("-")]
    if words[:1] and words[0] in FOR_MODELS:
        check_interpreter_for_models()
    if words[:1] and words[0] in THEIRS:
        raise UserError(f"`trinity {words[0]}` is of Trinity-RFT: {THEIRS[words[0]]}")
    command = typer.main.get_command(make_app(words))
    show_full_summaries(command)
    command(standalone_mode=standalone_mode)


def _written_words() -> list[str]:
    """Returns the words behind the program's name: while a shell completes, those of its line."""
    if not any(name.endswith(COMPLETE_SUFFIX) for name in os.environ):
        return sys.argv[1:]
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def show_full_summaries(command: object) -> None:
    """Makes lists of commands show whole first paragraphs, which typer would cut off."""
    for inner in command.commands.values() if isinstance(command, TyperGroup) else ():
        inner.short_help = inner.short_help or " ".join((inner.help or "").split("\n\n")[0].split())
        show_full_summaries(inner)


def main() -> None:
    """Entry point; exit code 2 for a user's error, 1 for a failed run, 3 for no answer yet."""
    gc.set_threshold(GC_THRESHOLD)
    reach_loopback_directly()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # hides log lines of gRPC's core
    if sys.argv[1:2] == ["config"]:
        os.environ.setdefault(*WITHOUT_PLUGINS)
    guard_terminal()
    try:
        app()
    except UserError as error:
        sys.exit(_fail(error, USER_ERROR))
    except ServiceNotReady as error:
        sys.exit(_fail(error, NO_ANSWER))
    except (TrinityError, OSError) as error:
        sys.exit(_fail(error, FAILURE))
    except ModuleNotFoundError as error:
        from trinity.config.checks.packages import not_installed

        if (sentence := not_installed(error)) is None:
            raise
        sys.exit(_fail(UserError(sentence), USER_ERROR))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _module(name: str) -> object:
    return import_module(f"trinity.cli.{name}")


def _placeholder() -> None:
    """Placeholder of a command that this process was not started with."""


def _fail(error: Exception, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error}\n")
    return code


if __name__ == "__main__":
    main()
