"""`trinity`: the commands, and how mistakes become exit codes."""

import io
import sys

import typer

from trinity.cli.config_from_verl import from_verl
from trinity.cli.config_plan import plan
from trinity.cli.run import run
from trinity.cli.status import status
from trinity.cli.version import version
from trinity.cli.why import why
from trinity.errors import TrinityError, UserError

USER_MISTAKE = 2
FAILURE = 1
INTERRUPTED = 130

app = typer.Typer(
    help="Reinforcement fine-tuning of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(status)
app.command()(why)
app.command()(version)
config_app = typer.Typer(help="Configurations.", no_args_is_help=True)
config_app.command("from-verl")(from_verl)
config_app.command("plan")(plan)
app.add_typer(config_app, name="config")


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


def _fail(error: Exception, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {error}\n")
    return code


if __name__ == "__main__":
    main()
