"""Importing the configuration costs no service its memory."""

import subprocess
import sys


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
