"""`trinity config`: everything about configurations; what is heavy is imported by each command."""

from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.overrides import is_override
from trinity.cli.run import PluginDirOption, use_plugins

app = typer.Typer(no_args_is_help=True)

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE... [KEY=VALUE]...",
        help="YAML files, and keys that go over theirs.",
        show_default=False,
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Fail on every key that does not act as it is written.")
]


@app.command()
def check(
    files: FilesArgument, strict: StrictOption = False, plugin_dir: PluginDirOption = None
) -> None:
    """Say everything that is wrong with files; no GPU, model, data or service is looked at.

    Exit code 0: they can be run, or will be once what is planned is there. 2: they cannot.
    """
    from trinity.cli.checking import check_files

    use_plugins(plugin_dir)
    overrides = [given for given in files if is_override(given)]
    paths = [Path(given) for given in files if not is_override(given)]
    check_files(paths, overrides, strict=strict)
