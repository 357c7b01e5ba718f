"""`trinity config`: commands on configurations; each command imports its heavy modules itself."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.overrides import (
    FileOption,
    FilesOption,
    WordsArgument,
    is_override,
    split_words,
)
from trinity.cli.run import AdoptedOption, PluginDirOption, plugin_words, use_plugins
from trinity.errors import UserError

app = typer.Typer(no_args_is_help=True)

FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]... [KEY=VALUE]...",
        help="YAML files, and keys that override theirs.",
        show_default=False,
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Fail on every key that does not act as it is written.")
]
DiffArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="A B [KEY=VALUE]...",
        help="Two YAML files, or one and the directory of a run, and keys that override B's.",
        show_default=False,
    ),
]
OriginOption = Annotated[
    bool, typer.Option("--origin", help="Show the origin of each value behind it.")
]


@app.command()
def check(
    words: FilesArgument = None,
    config: FilesOption = None,
    strict: StrictOption = False,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Report all errors in files and in data that are here; no GPU, model or service is checked.

    Exit code 0: they can be run, now or once planned features are supported. 2: they cannot.
    """
    from trinity.cli.config_check import check_files

    use_plugins(plugin_dir, adopted, runs=False)
    paths, overrides = _split(words, config)
    check_files(paths, overrides, strict=strict)


@app.command()
def show(
    words: WordsArgument = None,
    config: FileOption = None,
    origin: OriginOption = False,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Print a file fully resolved, with every value that acts; secrets are hidden."""
    from trinity.cli.config_commands import show_file

    use_plugins(plugin_dir, adopted, runs=False)
    file, overrides = split_words(words, config, "trinity config show")
    show_file(file, overrides, with_origin=origin)


@app.command()
def diff(
    words: DiffArgument = None,
    config: FilesOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Print the keys that act differently in two files, or in a file and the run in a directory.

    Of a run, it says which changes are free, which ones change the experiment, and which ones are
    impossible. Exit code 0: no difference. 1: differences. 2: one of them cannot be run, or the run
    cannot go on with the file.
    """
    from trinity.cli.config_commands import show_difference, show_run_difference

    use_plugins(plugin_dir, adopted, runs=False)
    paths, overrides = _split(words, config)
    if len(paths) != 2:
        raise UserError(
            f"`trinity config diff` compares two, and {len(paths)} are named: write "
            "`trinity config diff A B`, two YAML files, or one and the directory of a run"
        )
    before, after = paths
    if before.is_dir() and not after.is_dir():
        raise UserError(
            f"{before} is a directory: write `trinity config diff {after} {before}`, the file first"
        )
    if after.is_dir():
        raise typer.Exit(show_run_difference(before, after, overrides))
    if show_difference(before, after, overrides):
        raise typer.Exit(1)


def _split(words: list[str] | None, config: list[Path] | None) -> tuple[list[Path], list[str]]:
    """Returns all files, those of `--config` first, and the overrides."""
    given = words or []
    files = [Path(word) for word in given if not is_override(word)]
    return [*(config or []), *files], [word for word in given if is_override(word)]


@app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As algorithm.optimizer.lr, or lr.")],
) -> None:
    """Explain a key: its meaning, its values, the parts that read it and its name in verl."""
    from trinity.cli.config_commands import explain_key

    explain_key(key)


@app.command()
def schema() -> None:
    """Print the JSON Schema, with which editors complete keys and underline errors."""
    from trinity.cli.config_commands import print_schema

    print_schema()


@app.command()
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file to write, else trinity.yaml.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The same.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    model: Annotated[str | None, typer.Option(help="Directory or hub name of the model.")] = None,
    taskset: Annotated[str | None, typer.Option(help="File or directory of the tasks.")] = None,
    algorithm: Annotated[str, typer.Option(help="Algorithm: docs/algorithms.md.")] = "grpo",
    workflow: Annotated[
        str | None, typer.Option(help="Workflow, by name or dotted path, else by the answers.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward, by name or dotted path, else by the answers.")
    ] = None,
    prompt_key: Annotated[
        str | None, typer.Option(help="Column of the prompt, else a usual one.")
    ] = None,
    response_key: Annotated[
        str | None, typer.Option(help="Column of the truth, else a usual one.")
    ] = None,
    eval_split: Annotated[
        str | None, typer.Option(help="Split to evaluate on, such as test.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of the machine.")] = 0,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Write a configuration with a comment behind each key; asks for missing options.

    A model and data that are here are looked into: lengths, columns, the reward that fits, a split
    to evaluate on.
    """
    from trinity.cli.config_init import GivenOptions, write_draft

    if file is not None and output is not None:
        raise UserError(f"{file} and --output {output} are both given: name one file to write")
    options = GivenOptions(
        name=name or _asked("How is the run called", "--name", "first-run"),
        model=model or _asked("Directory or hub name of the model", "--model", None),
        taskset=taskset or _asked("File or directory of the tasks", "--taskset", None),
        algorithm=algorithm,
        workflow=workflow,
        reward=reward,
        prompt_key=prompt_key,
        response_key=response_key,
        eval_split=eval_split,
        gpus=gpus,
    )
    use_plugins(plugin_dir, adopted)
    write_draft(file or output or Path("trinity.yaml"), options, plugin_words(plugin_dir, adopted))


def _asked(question: str, option: str, default: str | None) -> str:
    """Asks at a terminal; without one, returns the default or names the missing option."""
    if not sys.stdin.isatty():
        if default is not None:
            return default
        raise UserError(f"{option} is missing, and there is no terminal to ask at: give it")
    answer: str = typer.prompt(question, default=default)
    return answer
