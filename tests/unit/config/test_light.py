"""Importing the configuration costs no service its memory, and a short command no patience."""

import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent / "guide"
HEAVY = ("torch", "vllm", "transformers", "sqlalchemy", "verl", "datasets", "pyarrow", "grpc")


def test_importing_the_configuration_brings_no_heavy_library() -> None:
    code = (
        "import sys, trinity.config; "
        "print([m for m in ('torch', 'pyarrow', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_and_planning_bring_no_heavy_library() -> None:
    code = (
        "import sys, trinity.cli.main; "
        "from tests.unit.config.builders import GRPO, SFT, DPO, stage; "
        "[stage(GRPO, algorithm={'algorithm_type': n}) for n in ('ppo', 'dapo', 'gspo', 'topr')]; "
        "stage(SFT), stage(DPO); "
        "print([m for m in ('torch', 'verl', 'pyarrow', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["config", "--help"],
        ["config", "check", str(GUIDE / "everything.yaml"), "buffer.batch_size=7"],
        ["config", "show", str(GUIDE / "verl.yaml")],
        ["config", "explain", "algorithm.optimizer.lr"],
        ["config", "schema"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_short_command_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\nfrom trinity.cli.main import main\n"
        f"sys.argv = ['trinity', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported: {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_file_that_needs_no_interpolation_needs_no_numpy_and_no_omegaconf() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom trinity.config.check import check_file\n"
        f"assert check_file(Path({str(GUIDE / 'ppo.yaml')!r})).reading\n"
        "print([name for name in ('numpy', 'omegaconf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
