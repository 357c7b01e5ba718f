"""Rollout and train tokens/s, MFU and the time of a weight sync, with the device's limits.

python -m benchmarks.gpu [--size 0.5b] [--steps 3] [--json FILE]

For a machine with a GPU; `--size tiny` tries it without one, and says which limits need one. The
engine and the learner are the services' own, each in a separate process, one after the other on
the same device; the model is made here, with random weights. The limits follow from what the device
does in the same minutes: copies within it and between it and the host, and one large product of
matrices.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.figures import Figure, figures_of
from benchmarks.gpu.sizes import SIZES, write_model

ROOT = Path(__file__).resolve().parents[2]
RESULT = "measured.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="0.5b")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/gpu.json")
    parser.add_argument("--part", choices=["training", "rollout"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        _measure(given.part, given.folder, given.size, given.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        record = _measure_all(Path(folder), given.size, given.steps)
    given.json.write_text(json.dumps(record, indent=2) + "\n")


def _measure_all(folder: Path, name: str, steps: int) -> dict[str, object]:
    (folder / "weights").mkdir()
    parameters = write_model(folder / "model", SIZES[name])
    trained = _in_process("training", folder, name, steps)
    rolled_out = _in_process("rollout", folder, name, steps)
    figures = figures_of(SIZES[name], parameters, trained, rolled_out)
    _show(figures, f"{parameters / 1e6:.1f} million parameters on {trained['device_name']}")
    return {
        "size": name,
        "parameters": parameters,
        "figures": [figure.as_json() for figure in figures],
        "measured": {k: v for k, v in {**trained, **rolled_out}.items() if "path" not in k},
    }


def _in_process(part: str, folder: Path, name: str, steps: int) -> dict[str, float]:
    """Its memory on the device is free again when it ends."""
    argv = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--folder", str(folder)]
    subprocess.run(
        [*argv, "--size", name, "--steps", str(steps)],
        cwd=ROOT,
        env={**os.environ, "VLLM_RPC_BASE_PATH": str(folder)},
        check=True,
    )
    measured: dict[str, float] = json.loads((folder / f"{part}-{RESULT}").read_text())
    return measured


def _measure(part: str, folder: Path, name: str, steps: int) -> None:
    model, size = folder / "model", SIZES[name]
    found: object
    if part == "training":
        from benchmarks.gpu.training import measure_training

        found = measure_training(model, folder / "weights", size, steps)
    else:
        from benchmarks.gpu.rollout import measure_rollout, published_at

        left = json.loads((folder / f"training-{RESULT}").read_text())
        keys = ("path", "manifest_sha256", "weights_blake3")
        published = published_at(*(left[key] for key in keys))
        found = asyncio.run(measure_rollout(model, published, size, steps))
    (folder / f"{part}-{RESULT}").write_text(json.dumps(found))


def _show(figures: list[Figure], title: str) -> None:
    table = Table("figure", "measured", "limit", "reached", "the limit is", title=title)
    for figure in figures:
        limit = "-" if figure.limit is None else f"{figure.limit:.4g} {figure.unit}"
        share = "-" if figure.share is None else f"{figure.share:.1%}"
        table.add_row(figure.name, f"{figure.value:.4g} {figure.unit}", limit, share, figure.basis)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
