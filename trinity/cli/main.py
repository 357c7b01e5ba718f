"""`trinity`: the commands, and how mistakes become exit codes."""

import io
import sys
from importlib import import_module

import typer

from trinity.errors import TrinityError, UserError

USER_MISTAKE = 2
FAILURE = 1
INTERRUPTED = 130

COMMANDS = {
    "run": "Run an experiment, or go on with one that stopped.",
    "status": "Show a run's stages, members and what each waits for.",
    "why": "Say what holds a run up, and what to do.",
    "version": "Show the versions of everything that can change a result.",
}
"""Name to line of the help; a command is the function of its name in the module of its name."""

GROUPS = {"config": "Check, resolve, explain and write configurations."}
"""The same for groups of commands, each `app` of the module of its name."""


def make_app(chosen: str | None) -> typer.Typer:
    """The commands; only the chosen one is imported, the others are a line of the help."""
    app = typer.Typer(
        help="Reinforcement fine-tuning of language models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name, summary in COMMANDS.items():
        command = vars(_module(name))[name] if name == chosen else _unchosen
        app.command(name, help=None if name == chosen else summary)(command)
    for name, summary in GROUPS.items():
        group = vars(_module(name))["app"] if name == chosen else typer.Typer()
        if name != chosen:
            group.command("show")(_unchosen)
        app.add_typer(group, name=name, help=summary)
    return app


def app(*, standalone_mode: bool = True) -> None:
    """Run the command that the process was started with."""
    chosen = next((one for one in sys.argv[1:] if not one.startswith("-")), None)
    make_app(chosen)(standalone_mode=standalone_mode)


def main() -> None:
    """Entry point; exit code 2 for a user's mistake, 1 for a run that failed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # samples may hold what a terminal cannot show
    try:
        app()
    except UserError as error:
        sys.exit(_fail(error, USER_MISTAKE))
    except (TrinityError, OSError) as error:
        sys.exit(_fail(error, FAILURE))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _module(name: str) -> object:
    return import_module(f"trinity.cli.{name}")


def _unchosen() -> None:
    """Stands for a command that this process was not started with."""


def _fail(error: Exception, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error}\n")
    return code


if __name__ == "__main__":
    main()
