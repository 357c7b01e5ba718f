"""`trinity studio`: runs, their experiences and configurations in a browser."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.run import AdoptedOption, PluginDirOption, use_plugins
from trinity.config.checks.packages import install_command
from trinity.errors import UserError
from trinity.run.runs import SynchronizerOption, default_root

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
BufferOption = Annotated[
    str,
    typer.Option(
        "--buffer", help="The buffer's address, host:port, for experiments of a deployment."
    ),
]
HostOption = Annotated[
    str,
    typer.Option(
        "--host",
        help="The address to listen on. Beyond loopback browsers speak TLS and sign in with "
        "tokens.",
    ),
]
TlsFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-folder",
        help="Beyond loopback: the folder of `trinity certs` with the certificate that browsers "
        "see and the keys of their tokens, where that is not TRINITY_SECURITY_DIR.",
        show_default=False,
    ),
]


def studio(
    places: PlacesArgument = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="The port; 0 for any that is free.")
    ] = DEFAULT_PORT,
    host: HostOption = "127.0.0.1",
    buffer: BufferOption = "",
    synchronizer: SynchronizerOption = "",
    tls_folder: TlsFolderOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Let visitors give rewards, exclude, include and delete experiences, and upload "
            "tasks.",
        ),
    ] = False,
) -> None:
    """Show runs and their experiences in a browser, and write configurations.

    Prints an address that works once. It serves this machine only, unless --host says otherwise;
    from another one it is reached through `ssh -L 8080:localhost:8080`. It needs no running
    service, and ends no run when it ends.
    """
    require_extra()
    use_plugins(plugin_dir, adopted)
    from trinity.runtime.security.credentials import Credentials
    from trinity.studio.context import StudioOptions
    from trinity.studio.listening import Listening
    from trinity.studio.server import serve
    from trinity.studio.system import system_at

    security = Credentials.from_environment()
    served = Credentials(tls_folder) if tls_folder is not None else security
    listening = Listening.of(host, port, served)
    if tls_folder is not None and not listening.is_secure:
        raise UserError(
            f"--tls-folder is for other machines, and Studio on {host} serves this one alone: give "
            "--host as well, or leave it out"
        )
    system = system_at(buffer=buffer, synchronizer=synchronizer, security=security)
    if listening.is_secure:
        _check_deployment(
            host, has_system=system is not None, is_unchecked=allow_changes and not security.is_on
        )
    usual = () if system is not None else (default_root(),)
    options = StudioOptions(
        places=tuple(places or usual), system=system, allows_changes=allow_changes
    )
    serve(options, listening, security=served, say=_say)


def _check_deployment(host: str, *, has_system: bool, is_unchecked: bool) -> None:
    """Raises UserError for what may not be served to other machines."""
    if not has_system:
        raise UserError(
            f"Studio on {host} shows the experiments of a deployment: give --buffer and "
            "--synchronizer, or leave --host out"
        )
    if is_unchecked:
        raise UserError(
            "--allow-changes needs services that check tokens, and without TRINITY_SECURITY_DIR "
            "these check none: leave it out, or leave --host out and let this machine's user change"
        )


def require_extra() -> None:
    """Raises UserError if the packages of Studio are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Studio needs {' and '.join(missing)}, which this environment does not have: "
            f"{install_command('studio')}"
        )


def _say(line: str) -> None:
    print(line, flush=True)
