"""`trinity`: the commands, and how mistakes become exit codes."""

import io
import sys

import typer

from trinity.cli.export import export
from trinity.cli.feedback import feedback
from trinity.cli.lineage import lineage
from trinity.cli.retrain import retrain
from trinity.cli.run import run
from trinity.cli.set_aside import delete, exclude
from trinity.cli.status import status
from trinity.cli.version import version
from trinity.cli.view import view
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
app.command()(view)
app.command()(lineage)
app.command()(export)
app.command()(feedback)
app.command()(exclude)
app.command()(delete)
app.command()(retrain)
app.command()(version)


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
