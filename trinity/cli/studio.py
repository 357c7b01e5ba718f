"""`trinity studio`: runs, their experiences and configurations in a browser."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from trinity.errors import UserError

DEFAULT_PORT = 8080
NEEDED = ("streamlit", "tokenizers")
PlacesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Directories of runs, or roots below which runs are looked for; by default "
        "TRINITY_CHECKPOINT_ROOT_DIR, or `checkpoints`.",
        show_default=False,
    ),
]


def studio(
    places: PlacesArgument = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="The port; 0 for any that is free.")
    ] = DEFAULT_PORT,
) -> None:
    """Show runs and their experiences in a browser, and write configurations.

    Prints an address that works once. It serves this machine only; from another one it is reached
    through `ssh -L 8080:localhost:8080`. It needs no running service, and ends no run when it ends.
    """
    require_extra()
    from trinity.studio.context import StudioContext
    from trinity.studio.server import serve

    serve(StudioContext.from_places(places or []), port=port, say=_say)


def require_extra() -> None:
    """Raises UserError if the packages of Studio are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Studio needs {' and '.join(missing)}, which this environment does not have: run "
            "`pip install 'trinity-services[studio]'`, or `make setup` in the repository"
        )


def _say(line: str) -> None:
    print(line, flush=True)
