"""Torchvision's common build loads beside torch's build for processors, in every process."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

LOCKS = Path(__file__).parents[3] / "requirements"
USE = """
import torch
from torchvision.transforms.v2 import functional
print(functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape)
"""
WITHOUT = """
import sys
sys.meta_path = [own for own in sys.meta_path if type(own).__name__ != "_BeforeTorchvision"]
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(
    "+cpu" not in metadata.version("torch"), reason="both builds are for the same device"
)
def test_a_new_process_can_use_it_and_could_not_by_itself() -> None:
    done = run(USE)
    assert done.stdout == "torch.Size([3, 4, 4])\n", done.stderr
    assert "operator torchvision::nms does not exist" in run(WITHOUT + USE).stderr


@pytest.mark.parametrize("package", ["torchvision", "torch"])
def test_the_installer_puts_the_declarations_beside_torchvision(
    tmp_path: Path, package: str
) -> None:
    packages, python = tmp_path / "packages", tmp_path / "python"
    packages.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] || echo {packages}\n')
    python.chmod(0o755)
    lock = tmp_path / "some.lock"
    lock.write_text(f"{package}==1.0\n")
    command = [str(LOCKS / "install_locked.sh"), str(lock), str(python)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    written = {path.name for path in packages.iterdir()}
    name = "torchvision_beside_cpu_torch"
    assert written == ({f"{name}.py", f"{name}.pth"} if package == "torchvision" else set())
