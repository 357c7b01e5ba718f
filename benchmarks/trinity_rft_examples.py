"""Counts which of Trinity-RFT's own example files are right here, and which may start.

git clone --depth 1 https://github.com/agentscope-ai/Trinity-RFT
python -m benchmarks.trinity_rft_examples Trinity-RFT [--list]
python -m benchmarks.trinity_rft_examples FORK --files LIST --adopt

A file is right if `trinity config check` finds no error. It may start if, moreover, nothing in it
is only planned and all its parts can be imported; models, GPUs and data are not looked at. Workflow
files that Trinity-RFT keeps in itself are in a plugin folder, and so is what a README names with
`--plugin-dir`. With `--adopt` a file is what `trinity adopt` makes of it, with the parts that it
takes; LIST names the files of a fork, one a line, from its folder.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from trinity.cli.adopt import MANIFEST, adopt
from trinity.cli.config_check import check_on_machine
from trinity.errors import UserError
from trinity.plugins import ADOPTED_AS_VARIABLE, ADOPTED_VARIABLE, PLUGIN_DIRS_VARIABLE
from trinity.run.launch.prepare import check_names
from trinity.user_code.adopt.loading import OUTLINES

VARIABLES = {
    "TRINITY_MODEL_PATH": "Qwen/Qwen2.5-1.5B-Instruct",
    "TRINITY_TASKSET_PATH": "/data/tasks",
    "TRINITY_SFT_DATASET_PATH": "/data/sft",
    "WANDB_MODE": "offline",
}
"""Variables that the files read; the data need not be there."""
PRELOADED = (
    "trinity.rft.checks.workflow",
    "trinity.rft.common.rewards",
    "trinity.rft.workflows.math",
)
WORKFLOW_FOLDERS = ("envs", "agentscope")
"""Below trinity/common/workflows: workflows that need packages of others."""
_PLUGIN_DIR = re.compile(r"--config\s+(\S+\.yaml)\s+--plugin-dir\s+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOutcome:
    """The result of checking an example file."""

    path: Path
    errors: tuple[str, ...] = ()
    """Errors of `trinity config check`."""
    obstacles: tuple[str, ...] = ()
    """Other reasons for which a run would be refused."""

    @property
    def may_start(self) -> bool:
        """True if a machine with the model, the data and the GPUs would run it."""
        return not self.errors and not self.obstacles


def main() -> None:
    """Prints the counts of the example files of one copy of Trinity-RFT."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help="each file that may not start")
    parser.add_argument("--files", type=Path, help="the files to check, in place of `examples`")
    parser.add_argument("--adopt", action="store_true", help="adopt each file's parts first")
    options = parser.parse_args()
    root = options.folder.resolve()
    named = options.files.read_text(encoding="utf-8").split() if options.files else None
    files = example_files(root) if named is None else [Path(name) for name in named]
    outcomes = adopted_outcomes(root, files) if options.adopt else outcomes_of(root, files)
    for line in (*(listed(outcomes) if options.list else ()), *table(outcomes)):
        print(line)


def outcomes_of(root: Path, files: Sequence[Path]) -> list[ExampleOutcome]:
    """Checks every example in a separate process: plug-ins of one are not those of another."""
    plugin_dirs = _plugin_dirs_of_readmes(root)
    with tempfile.TemporaryDirectory() as folder:
        common = plugin_folder(root, Path(folder))
        check = partial(_outcome_of, root, common, plugin_dirs)
        return _each_alone(check, files)


def adopted_outcomes(root: Path, files: Sequence[Path]) -> list[ExampleOutcome]:
    """Checks every file after `trinity adopt`, each in a process."""
    return _each_alone(partial(_outcome_of_adopted, root), files)


def _each_alone(
    check: Callable[[Path], ExampleOutcome], files: Sequence[Path]
) -> list[ExampleOutcome]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *PRELOADED])
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.map(check, files, chunksize=1)


def _outcome_of_adopted(root: Path, path: Path) -> ExampleOutcome:
    os.chdir(root)
    os.environ |= VARIABLES
    with tempfile.TemporaryDirectory() as folder:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                adopt(root, path, Path(folder))
        except UserError as error:
            return ExampleOutcome(path=path, errors=(str(error),))
        os.environ |= {
            ADOPTED_VARIABLE: str(Path(folder) / MANIFEST),
            ADOPTED_AS_VARIABLE: OUTLINES,
        }
        return replace(_checked(Path(folder) / path.name), path=path)


def example_files(root: Path) -> list[Path]:
    """Returns the configurations below `examples`, relative to the copy; other YAML is left out."""
    paths = sorted((root / "examples").rglob("*.yaml"))
    return [path.relative_to(root) for path in paths if _is_configuration(path)]


def _is_configuration(path: Path) -> bool:
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    return isinstance(written, dict) and {"model", "buffer"} <= written.keys()


def plugin_folder(root: Path, folder: Path) -> Path:
    """Links the workflow files that Trinity-RFT keeps in itself into a plugin folder."""
    for name in WORKFLOW_FOLDERS:
        (folder / name).symlink_to(root / "trinity" / "common" / "workflows" / name)
    return folder


def _plugin_dirs_of_readmes(root: Path) -> dict[str, str]:
    """Returns the plugin folders that READMEs give, by the file that goes with it."""
    texts = (path.read_text(encoding="utf-8") for path in (root / "examples").rglob("README.md"))
    return dict(pair for text in texts for pair in _PLUGIN_DIR.findall(text))


def _outcome_of(
    root: Path, common: Path, plugin_dirs: dict[str, str], path: Path
) -> ExampleOutcome:
    os.chdir(root)
    own = plugin_dirs.get(str(path))
    folders = [str(common), *([str(root / own)] if own else [])]
    os.environ |= {**VARIABLES, PLUGIN_DIRS_VARIABLE: os.pathsep.join(folders)}
    return _checked(path)


def _checked(path: Path) -> ExampleOutcome:
    report = check_on_machine(path, {})
    planned = [str(notice) for notice in report.reading.planned] if report.reading else []
    if report.plan is not None and not report.errors:
        try:
            check_names(report.plan)
        except UserError as error:
            planned += str(error).splitlines()
    return ExampleOutcome(path=path, errors=report.errors, obstacles=tuple(planned))


def listed(outcomes: Sequence[ExampleOutcome]) -> Iterator[str]:
    """Yields a line for each reason why a file may not start."""
    for outcome in outcomes:
        for word, texts in (("error", outcome.errors), ("planned", outcome.obstacles)):
            for text in texts:
                yield f"{outcome.path}: {word}: {text}"


def table(outcomes: Sequence[ExampleOutcome]) -> Iterator[str]:
    """Yields the counts as Markdown."""
    yield "| example files | number |"
    yield "| --- | --- |"
    yield f"| all | {len(outcomes)} |"
    yield f"| no mistake | {sum(not outcome.errors for outcome in outcomes)} |"
    yield f"| may start | {sum(outcome.may_start for outcome in outcomes)} |"


if __name__ == "__main__":
    main()
