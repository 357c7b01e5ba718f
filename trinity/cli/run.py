"""`trinity run`: runs an experiment from a YAML file on this machine."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.overrides import FileOption, WordsArgument, split_words

PLUGIN_DIRS = "TRINITY_PLUGIN_DIRS"
ADOPTED = "TRINITY_ADOPTED"
ADOPTED_AS = "TRINITY_ADOPTED_AS"
ADOPTED_CHANGES = "TRINITY_ADOPTED_CHANGES"

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and show what would be done.")
]
MaxStepsOption = Annotated[
    int | None,
    typer.Option("--max-steps", min=1, help="A trial: end each stage after this many train steps."),
]
PluginDirOption = Annotated[
    Path | None,
    typer.Option(
        "--plugin-dir",
        help="Directory of Python files with workflows, rewards, advantages, losses.",
    ),
]
AdoptedOption = Annotated[
    Path | None,
    typer.Option("--adopted", help="File of `trinity adopt`, with parts of a fork."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse keys that have no effect or are renamed.")
]
AcceptChangesOption = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Go on with a file whose changes make it another experiment."
    ),
]
SecureOption = Annotated[
    bool,
    typer.Option(
        "--secure", help="Use certificates and tokens between the parts, as in a cluster."
    ),
]
ExplorersOption = Annotated[
    int | None,
    typer.Option(
        "--explorers",
        min=1,
        help="In a job of `trinity deploy render --target slurm`: explorers on its nodes.",
    ),
]


def run(
    words: WordsArgument = None,
    config: FileOption = None,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    max_steps: MaxStepsOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
    secure: SecureOption = False,
    accept_changes: AcceptChangesOption = False,
    explorers: ExplorersOption = None,
) -> None:
    """Run an experiment; started again on the same directory, it resumes where it stopped."""
    from trinity.cli.experiment import RunOptions, run_experiment

    file, overrides = split_words(words, config, "trinity run")
    use_plugins(plugin_dir, adopted)
    if accept_changes:
        os.environ[ADOPTED_CHANGES] = "accepted"
    options = RunOptions(
        config=file,
        overrides=tuple(overrides),
        dry_run=dry_run,
        strict=strict,
        max_steps=max_steps,
        plugins=tuple(plugin_words(plugin_dir, adopted)),
        secure=secure,
        accept_changes=accept_changes,
        explorers=explorers,
    )
    run_experiment(options)


def use_plugins(directory: Path | None, adopted: Path | None, *, runs: bool = True) -> None:
    """Sets plugin directory and adopted parts, also for services that this process starts.

    A process that runs nothing only reads the files of a fork.
    """
    if directory is not None:
        os.environ[PLUGIN_DIRS] = str(directory.resolve())
    if adopted is not None:
        os.environ[ADOPTED] = str(adopted.resolve())
        os.environ[ADOPTED_AS] = "modules" if runs else "outlines"


def plugin_words(directory: Path | None, adopted: Path | None) -> list[str]:
    """Returns the options as words of a command."""
    options = {"--plugin-dir": directory, "--adopted": adopted}
    return [word for name, path in options.items() if path for word in (name, str(path))]
