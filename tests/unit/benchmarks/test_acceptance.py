"""Each part has an outcome of its own, and one that fails ends no other."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.acceptance import __main__ as acceptance
from benchmarks.acceptance.__main__ import (
    EXAMPLE,
    NO_CUDA,
    ROOT,
    AcceptancePart,
    PartState,
    page_of,
    parts_of,
)
from trinity.cli.overrides import parse_overrides
from trinity.config.check import check_file


def part(name: str, program: str, **changes: object) -> AcceptancePart:
    given = {"name": name, "promise": f"{name} works", "argv": (sys.executable, "-c", program)}
    return AcceptancePart(**{"num_gpus": 0, **given, **changes})  # type: ignore[arg-type]


def test_without_a_gpu_every_part_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acceptance, "gpu_names", list)
    assert acceptance.main(["--folder", str(tmp_path), "--size", "tiny"]) == 0
    record = json.loads((tmp_path / "acceptance.json").read_text())
    assert {one["reason"] for one in record["parts"]} == {"no GPU on this machine"}
    assert {one["state"] for one in record["parts"]} == {"not run"}
    assert len(record["parts"]) == len(parts_of("tiny", tmp_path))
    assert "9 not run" in capsys.readouterr().out


def test_a_part_that_fails_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "figures.json"
    made = (
        part("breaks", "print('one', flush=True); raise SystemExit('out of memory')"),
        part("hangs", "import time; time.sleep(60)", minutes=0.005),
        part("missing", "", argv=("/no/such/program",)),
        part("silent", "pass", figures=Path("nothing.json")),
        part("works", f"open({str(figures)!r}, 'w').write('{{\"mfu\": 0.4}}')", figures=figures),
        part("large", "raise SystemExit(1)", num_gpus=2),
    )
    monkeypatch.setattr(acceptance, "parts_of", lambda *_: made)
    monkeypatch.setattr(acceptance, "gpu_names", lambda: ["H100"])
    monkeypatch.setattr(acceptance, "gpus_of_torch", lambda: 1)
    assert acceptance.main(["--folder", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "acceptance.json").read_text())
    found = {one["name"]: one for one in record["parts"]}
    assert found["breaks"]["state"] == "failed"
    assert found["breaks"]["reason"] == "exit code 1: one / out of memory"
    assert "not over after 0.005 minutes" in found["hangs"]["reason"]
    assert "could not be started" in found["missing"]["reason"]
    assert "left no figures" in found["silent"]["reason"]
    assert (found["works"]["state"], found["works"]["figures"]) == ("passed", {"mfu": 0.4})
    assert found["large"]["reason"] == "one GPU on this machine, and the part needs 2"
    assert (tmp_path / "breaks.log").read_text().endswith("out of memory\n")


def test_torch_without_cuda_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "gpu_names", lambda: ["H100", "H100"])
    monkeypatch.setattr(acceptance, "gpus_of_torch", lambda: 0)
    assert acceptance.main(["--folder", str(tmp_path), "--size", "tiny"]) == 0
    record = json.loads((tmp_path / "acceptance.json").read_text())
    assert {part["reason"] for part in record["parts"]} == {NO_CUDA}


def test_the_page_names_the_machine_and_why(tmp_path: Path) -> None:
    broken = acceptance.outcome_of(part("breaks", "raise SystemExit(3)"), tmp_path)
    page = page_of([broken], machine="H100")
    assert broken.state is PartState.FAILED
    assert "H100: 0 passed, 1 failed, 0 not run." in page
    assert "- **breaks**: exit code 3: " in page
    assert "| breaks | failed |" in page


def test_what_the_parts_run_is_there(tmp_path: Path) -> None:
    for one in parts_of("tiny", tmp_path):
        files = [word for word in one.argv if word.startswith(("tests/", "examples/"))]
        assert all((ROOT / file).exists() for file in files), one


def test_the_runs_of_the_parts_are_right(tmp_path: Path) -> None:
    runs = [part.argv for part in parts_of("tiny", tmp_path) if "run" in part.argv]
    assert len(runs) == 3
    for words in runs:
        changes = parse_overrides([word for word in words if "=" in word])
        report = check_file(ROOT / EXAMPLE, changes)
        assert report.errors == (), words
        assert report.plan is not None
        by_turns = "stages[1].mode=colocate" in words
        assert [stage.takes_turns for stage in report.plan.stages] == [by_turns, by_turns]
