"""The benchmark for a machine with a GPU runs to its end on any, at a size that means nothing."""

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import ROOT
from benchmarks.gpu.figures import NEEDS_GPU, NEEDS_PEAK

MEASURED = (
    *("device_copy_bytes_per_second", "device_product_flops", "step_seconds", "tokens_per_step"),
    *("export_seconds", "write_seconds", "weights_bytes", "rollout_seconds", "rollout_tokens"),
    *("check_and_load_seconds", "load_seconds"),
)
WITHOUT_GPU = [("training", NEEDS_PEAK), ("MFU", NEEDS_PEAK), ("weight sync", NEEDS_GPU)]
OF_A_GPU = ("device_peak_flops", "device_to_device_bytes_per_second", "peak_memory_bytes")


@pytest.mark.thorough
@pytest.mark.timeout(600)
async def test_what_needs_no_gpu_is_measured_and_the_rest_says_that_it_does(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gpu.json"
    table = await run("--size", "tiny", "--steps", "1", "--json", str(file))
    record = json.loads(file.read_text())
    figures, measured = record["figures"], record["measured"]
    assert [one["name"] for one in figures] == ["rollout", "training", "MFU", "MFU", "weight sync"]
    assert all(is_figure(measured[name]) for name in MEASURED)
    for one in figures:
        assert is_figure(one["value"])
        has_limit = is_figure(one["limit"]) and is_figure(one["share"])
        assert has_limit or one["limit"] is one["share"] is None
        assert one["basis"] in table
    if measured["device_name"] == "processor":
        without = [(one["name"], one["basis"]) for one in figures if one["limit"] is None]
        assert without == WITHOUT_GPU
        assert not measured.keys() & set(OF_A_GPU)


async def run(*arguments: str) -> str:
    """What it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.gpu", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return out.decode()


def is_figure(value: float | None) -> bool:
    """Whether something was measured."""
    return value is not None and math.isfinite(value) and value > 0
