"""`trinity config`: everything about configurations; what is heavy is imported by each command."""

from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.overrides import OverridesArgument, is_override
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


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file.")]
OriginOption = Annotated[
    bool, typer.Option("--origin", help="Say behind each value where it comes from.")
]


@app.command()
def show(
    file: FileArgument, overrides: OverridesArgument = None, origin: OriginOption = False
) -> None:
    """Print a file with nothing left open: every value that acts; secrets are hidden."""
    from trinity.cli.showing import show_file

    show_file(file, overrides or [], with_origin=origin)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A YAML file.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Print what acts differently in two files, whatever way it is written.

    Exit code 0: nothing. 1: something does. 2: one of them cannot be run.
    """
    from trinity.cli.showing import show_difference

    if show_difference(before, after):
        raise typer.Exit(1)


@app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As algorithm.optimizer.lr, or lr.")],
) -> None:
    """Say what a key means, what it takes, who reads it and what verl calls it."""
    from trinity.cli.explaining import explain_key

    explain_key(key)


@app.command()
def schema() -> None:
    """Print the JSON Schema, by which editors complete keys and underline mistakes."""
    from trinity.cli.explaining import print_schema

    print_schema()
