"""Processes import what was installed, on a Python and a system that this was made for."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pythons import other_python
from trinity.errors import UserError
from trinity.runtime import interpreter
from trinity.runtime.interpreter import (
    check_interpreter,
    check_interpreter_for_models,
    hiding_files,
)
from trinity.runtime.process.child_process import module_command

REPOSITORY = Path(__file__).parents[2]
SHADOW = "raise SystemExit('the file of the current folder was imported')\n"
HIDDEN = ("random", "argparse", "grpc", "trinity", "services")
SECONDS = 120.0
"""Far below what an installation takes; the answer itself comes in less than one."""


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder, with a space in its name, whose files have the names of modules."""
    folder = tmp_path / "my project"
    folder.mkdir()
    for name in HIDDEN:
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text(SHADOW)
    return folder


def ended(command: list[str], folder: Path, *path: Path | str) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join(map(str, (*path, REPOSITORY)))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": found}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("service", ["buffer", "synchronizer", "trainer", "explorer"])
def test_a_service_imports_nothing_of_the_current_folder(crowded: Path, service: str) -> None:
    done = ended(module_command(f"services.{service}"), crowded)
    assert done.returncode == 2 and f"{service}: " in done.stderr, done.stderr  # its settings
    assert "current folder" not in done.stderr


def test_without_that_the_current_folder_comes_first(crowded: Path) -> None:
    done = ended([sys.executable, "-m", "services.buffer"], crowded)
    assert "the file of the current folder was imported" in done.stderr


def test_every_process_of_ours_is_started_so() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for package in ("trinity", "services")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List | ast.Tuple | ast.Call)
        and any(isinstance(part, ast.Constant) and part.value == "-m" for part in _parts(node))
        and path.name != "child_process.py"
    ]
    assert wrong == []


def _parts(node: ast.List | ast.Tuple | ast.Call) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "Option":
            return []  # a command's own short option
        return node.args if len(node.args) > 1 else []  # `index("-m")` starts nothing
    return node.elts


@pytest.mark.parametrize("name", ["random.py", "typer.py", "inspect/__init__.py"])
def test_a_file_that_hides_a_module_from_the_commands_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tools" / name
    file.parent.mkdir(parents=True)
    file.write_text("VALUE = 1\n")
    done = ended([*module_command("trinity"), "config", "--help"], tmp_path, tmp_path / "tools")
    assert done.returncode == 2, done.stderr
    hidden = name.split(".")[0].split("/")[0]
    assert done.stderr.startswith(
        f"error: {tmp_path / 'tools' / hidden} hides the module `{hidden}`"
    )
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_named_twice_hides_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "of_mine.py").write_text("")
    (tmp_path / "other").mkdir()
    assert list(hiding_files([str(tmp_path), str(tmp_path / "other"), str(tmp_path)])) == []
    (tmp_path / "other" / "of_mine.py").write_text("")
    [sentence] = hiding_files([str(tmp_path), str(tmp_path / "other")])
    assert str(tmp_path / "other" / "of_mine.py") in sentence, "the control"


def test_an_empty_part_of_the_path_is_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    done = ended([*module_command("trinity"), "config", "--help"], tmp_path, "")
    assert f"{tmp_path / 'random'} hides the module `random`" in done.stderr


def test_a_mistake_of_ours_is_not_blamed_on_files_that_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text("")
    path = [place for place in sys.path if not place.startswith(str(tmp_path.parent))]
    assert list(hiding_files([str(tmp_path), *path])) == []


def test_what_a_library_puts_in_front_of_its_environment_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray does so with its own `psutil`."""
    parts = tmp_path / "environment" / "parts"
    parts.mkdir(parents=True)
    (parts / "psutil.py").write_text("")
    assert len(list(hiding_files([str(parts), *sys.path]))) == 1  # the control
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    assert list(hiding_files([str(parts)])) == []
    assert not [told for told in hiding_files([str(parts), *sys.path]) if str(parts) in told]


@pytest.mark.parametrize("package", ["services", "trinity"])
def test_packages_of_another_checkout_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    (tmp_path / package).mkdir()
    check_interpreter()  # a folder without code hides no package
    (tmp_path / package / "__init__.py").write_text("")
    with pytest.raises(UserError, match=f"{tmp_path / package} hides the module `{package}`"):
        check_interpreter()


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_these_versions_of_python_will_do(version: tuple[int, int]) -> None:
    check_interpreter(version, "linux")


def test_models_run_on_the_versions_for_which_torch_is_locked() -> None:
    check_interpreter_for_models((3, 11))
    check_interpreter_for_models((3, 12))
    with pytest.raises(
        UserError, match=r"models run on Python 3.11 to 3.12, and .* is Python 3.13"
    ):
        check_interpreter_for_models((3, 13))


@pytest.mark.parametrize("other", ["trinity_rft-0.6.0", "trinity-1.0", "services-2.1"])
def test_another_distribution_with_the_same_packages_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(interpreter, "_OWN_FOLDER", str(tmp_path))
    (tmp_path / "trinity_services-0.1.0.dist-info").mkdir()
    check_interpreter()
    (tmp_path / f"{other}.dist-info").mkdir()
    with pytest.raises(UserError, match=f"{other} and this project have packages of the same name"):
        check_interpreter()


@pytest.mark.parametrize(
    ("version", "system", "named"),
    [
        ((3, 14), "linux", "Python 3.11 to 3.13, and .* is Python 3.14"),
        ((3, 10), "linux", "is Python 3.10"),
        ((3, 12), "darwin", "runs on Linux, and here is darwin"),
        ((3, 11), "win32", "here is win32"),
    ],
)
def test_others_are_refused(version: tuple[int, int], system: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        check_interpreter(version, system)


@pytest.mark.parametrize("name", ["python3.10"])
def test_another_python_is_refused_before_anything_is_imported(tmp_path: Path, name: str) -> None:
    begun = time.monotonic()
    done = ended([other_python(name), "-m", "trinity", "--version"], tmp_path)
    assert done.returncode == 2 and "this runs on Python 3.11 to 3.13" in done.stderr, done.stderr
    assert time.monotonic() - begun < SECONDS


@pytest.mark.parametrize("name", ["python3.13", "python3.10"])
def test_no_environment_is_made_for_another_python(tmp_path: Path, name: str) -> None:
    begun = time.monotonic()
    done = set_up(tmp_path, PYTHON=other_python(name))
    assert done.returncode == 2 and "no Python 3.11 or 3.12 found" in done.stderr
    assert time.monotonic() - begun < SECONDS
    assert not (tmp_path / "environment").exists()


def test_no_environment_is_made_on_another_system(tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    done = set_up(tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 2 and "this runs on Linux, and here is Darwin" in done.stderr
    assert not (tmp_path / "environment").exists()


def set_up(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(REPOSITORY / "requirements" / "install.sh"), str(folder / "environment")]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_every_source_is_one_of_the_newest_python_without_a_warning(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "for path in pathlib.Path(sys.argv[1]).glob('*/**/*.py'):\n"
        "    if path.parts[len(pathlib.Path(sys.argv[1]).parts)] in sys.argv[2:]:\n"
        "        compile(path.read_text(encoding='utf-8'), str(path), 'exec')\n"
    )
    command = [other_python("python3.12"), "-W", "error", "-c", code, str(REPOSITORY)]
    done = ended([*command, "trinity", "services", "tests"], tmp_path)
    assert done.returncode == 0, done.stderr
