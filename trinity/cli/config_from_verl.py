"""`trinity config from-verl`: scripts and configurations of veRL as YAML of this system."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.overrides import FilesOption, refuse_ignored
from trinity.errors import UserError
from trinity.run.output import write_errors
from trinity.runtime.owned_places import write_new_file
from trinity.verl.back import verl_command
from trinity.verl.checkout import checkout_at
from trinity.verl.convert import Converted, convert
from trinity.verl.settings import read_sources, read_starts
from trinity.verl.work import ConversionOptions
from trinity.verl.written_rows import write_rows

SourcesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT|YAML|KEY=VALUE...",
        help="Sources of veRL's settings; later ones override earlier ones.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the YAML there.", show_default=False)
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", help="NAME=VALUE in the script's environment.", show_default=False),
]
LineOption = Annotated[
    int | None,
    typer.Option(
        "--line", help="Line of the command, if a script has several.", show_default=False
    ),
]
EngineNumOption = Annotated[
    int | None,
    typer.Option(
        "--engine-num", min=1, help="Rollout engines; else about a quarter of the GPUs roll out."
    ),
]
SyncOffsetOption = Annotated[
    int | None,
    typer.Option(
        "--sync-offset", min=0, help="Steps rollout may be ahead; 0 is veRL's order; else 1."
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--verl-version",
        help="veRL's version that the script was written for; else that of the veRL around it.",
        show_default=False,
    ),
]
VerlOption = Annotated[
    Path | None,
    typer.Option(
        "--verl",
        metavar="PATH",
        help="The veRL, or copy of it, that the script was written for; else the one around it.",
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]
RowsOption = Annotated[
    Path | None,
    typer.Option(
        "--write-rows",
        metavar="FOLDER",
        help="Run the script's own class of rows or sampler once, and write its rows there.",
        show_default=False,
    ),
]
RowsSecondsOption = Annotated[
    float, typer.Option("--write-rows-seconds", min=1, help="Seconds that this may take.")
]
BackOption = Annotated[
    Path | None,
    typer.Option(
        "--to-verl", metavar="YAML", help="Convert back: print veRL's command.", show_default=False
    ),
]


def from_verl(
    words: SourcesArgument = None,
    config: FilesOption = None,
    output: OutputOption = None,
    env: EnvOption = None,
    line: LineOption = None,
    engine_num: EngineNumOption = None,
    sync_offset: SyncOffsetOption = None,
    verl_version: VersionOption = None,
    verl: VerlOption = None,
    force: ForceOption = False,
    write_rows_to: RowsOption = None,
    write_rows_seconds: RowsSecondsOption = 3600,
    to_verl: BackOption = None,
) -> None:
    """Convert an experiment of veRL's to YAML; the script is not run.

    Nothing of the user's runs either, unless `--write-rows` asks for its class of rows.
    Each line has its origin; the end lists settings without counterpart and what to do.
    """
    sources = [*map(str, config or []), *(words or [])]
    if (to_verl is None) == (not sources):
        raise UserError("give either sources to convert, or --to-verl and a YAML file")
    if output is None and force:
        raise UserError("--force overwrites a file: add `--output`")
    if to_verl is not None:
        of_sources = {
            "--env": env,
            "--line": line,
            "--engine-num": engine_num,
            "--write-rows": write_rows_to,
            "--verl-version": verl_version,
            "--verl": verl,
        }
        refuse_ignored("--to-verl", {**of_sources, "--sync-offset": sync_offset})
        _write_command(verl_command(_read(to_verl), to_verl), output, force=force)
        return
    if verl is not None and verl_version is not None:
        raise UserError("--verl names a veRL, whose version counts: leave --verl-version out")
    choices = ConversionOptions(
        engine_num=engine_num,
        sync_offset=sync_offset,
        verl_version=verl_version,
        checkout=None if verl is None else checkout_at(verl),
    )
    given = _environment(env or [])
    if output is None or write_rows_to is not None:
        settings = read_sources(sources, given, line)
        if write_rows_to is not None:
            rows = write_rows(settings, write_rows_to, write_rows_seconds)
            print(rows.summary, file=sys.stderr)
            choices = replace(choices, rows=rows)
        starts = [settings]
    else:
        starts = read_starts(sources, given, line)
    _write_all(output, [convert(settings, choices) for settings in starts], force=force)


def _environment(options: list[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    for name, equals, _ in pairs:
        if not equals:
            raise UserError(f"--env {name} has no value: write --env {name}=VALUE")
    return {name: value for name, _, value in pairs}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: give a YAML file of this system") from error


def _write_command(command: str, output: Path | None, *, force: bool) -> None:
    if output is None:
        sys.stdout.write(command)
        return
    _write_text(output, command, force=force)
    print(f"wrote {output}")


def _write_text(path: Path, text: str, *, force: bool) -> None:
    with write_errors(path, "give another `--output`"):
        if force:
            path.write_text(text, encoding="utf-8")
        else:
            write_new_file(path, text, "give another name, or --force to overwrite it")


def _write_all(output: Path | None, results: list[Converted], *, force: bool) -> None:
    """Prints the only result, or writes each, with its number if there are several."""
    for number, converted in enumerate(results, 1):
        if output is None:
            sys.stdout.write(converted.yaml)
            continue
        numbered = output.with_stem(f"{output.stem}_{number}")
        _write(numbered if len(results) > 1 else output, converted, force=force)


def _write(path: Path, converted: Converted, *, force: bool) -> None:
    _write_text(path, converted.yaml, force=force)
    folder = path.with_name(f"{path.stem}_parts")
    for name, part in converted.parts.items():
        folder.mkdir(exist_ok=True)
        _write_text(folder / name, part, force=force)
    for text in converted.report:
        print(text)
    plugins = f" --plugin-dir {folder}" if converted.parts else ""
    print(f"\nwrote {path}; check it with: trinity config check {path}{plugins}")
