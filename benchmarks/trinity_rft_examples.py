"""Counts which of Trinity-RFT's own example files are right here, and which may start.

git clone --depth 1 https://github.com/agentscope-ai/Trinity-RFT
python -m benchmarks.trinity_rft_examples Trinity-RFT [--list]

A file is right if `trinity config check` finds no error. It may start if, moreover, nothing in it
is only planned and all its parts can be imported; models, GPUs and data are not looked at. Workflow
files that Trinity-RFT keeps in itself are in a plugin folder, and so is what a README names with
`--plugin-dir`.
"""

import argparse
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from trinity.cli.config_check import check_on_machine
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.run.launch.prepare import check_names

VARIABLES = {
    "TRINITY_MODEL_PATH": "Qwen/Qwen2.5-1.5B-Instruct",
    "TRINITY_TASKSET_PATH": "/data/tasks",
    "TRINITY_SFT_DATASET_PATH": "/data/sft",
    "WANDB_MODE": "offline",
}
"""Variables that the files read; the data need not be there."""
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
    options = parser.parse_args()
    outcomes = outcomes_of(options.folder.resolve())
    for line in (*(listed(outcomes) if options.list else ()), *table(outcomes)):
        print(line)


def outcomes_of(root: Path) -> list[ExampleOutcome]:
    """Checks every example in a process of its own: plug-ins of one are not those of another."""
    files = example_files(root)
    plugin_dirs = _plugin_dirs_of_readmes(root)
    with tempfile.TemporaryDirectory() as folder:
        common = plugin_folder(root, Path(folder))
        check = partial(_outcome_of, root, common, plugin_dirs)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            return pool.map(check, files, chunksize=1)


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
