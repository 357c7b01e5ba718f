"""The program `trinity`: checks the interpreter, then imports the commands."""

import sys

from trinity.errors import UserError
from trinity.runtime.interpreter import check_interpreter, hiding_files

USER_ERROR = 2
MAX_CAUSES = 3


def main() -> None:
    """Entry point; if a file hides a command's module, prints its name instead of a traceback."""
    try:
        check_interpreter()
        _run_command()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USER_ERROR)


def _run_command() -> None:
    try:
        from trinity.cli.main import main as run

        run()
    except (ImportError, AttributeError) as error:  # a file may hide a module
        if causes := list(hiding_files()):
            found = "; ".join(causes[:MAX_CAUSES])
            raise UserError(f"{found} ({type(error).__name__}: {error})") from error
        raise


if __name__ == "__main__":
    main()
