"""An audit of the locks passes only if the database of vulnerabilities answered."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
AUDITS = {
    "no database": ("echo 'ERROR: could not reach the service'; exit 1", "NOT CHECKED"),
    "finds nothing": ("echo 'No known vulnerabilities found'; exit 0", "NOT CHECKED"),
    "skips": ("echo 'setuptools: not found, and was skipped'; exit 1", "NOT CHECKED"),
    "answers": (
        'grep -q setuptools==65[.]5[.]0 "${@: -1}" && { echo PYSEC-2022-43012; exit 1; }; exit 0',
        "",
    ),
    "finds something": ("echo PYSEC-2022-43012; exit 1", "PYSEC-2022-43012"),
}


@pytest.mark.parametrize("audit", AUDITS)
def test_an_audit_without_a_database_does_not_pass(tmp_path: Path, audit: str) -> None:
    command, told = AUDITS[audit]
    tools = tmp_path / "tools" / "bin"
    tools.mkdir(parents=True)
    (tools / "pip-audit").write_text(f"#!/usr/bin/env bash\n{command}\n")
    (tools / "python").write_text("#!/bin/sh\nexit 0\n")  # the images are another test's
    for tool in tools.iterdir():
        tool.chmod(0o755)
    done = subprocess.run(
        [str(REPOSITORY / "requirements" / "check_supply.sh"), str(tools.parent)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == int(bool(told)), done.stdout
    assert told in done.stdout
