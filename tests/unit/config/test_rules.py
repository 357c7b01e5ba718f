"""The rules that files for Trinity-RFT rely on: each is followed, mended, or spoken of.

A case changes a small configuration, and says what follows in the plan, what a file is told, or
both. Where a rule of Trinity-RFT surprises its users, the case holds what is done here instead.
"""

from pathlib import Path

import yaml

from tests.unit.config.rules.algorithm_rules import ALGORITHM
from tests.unit.config.rules.buffer_rules import BUFFER, TRAINER
from tests.unit.config.rules.case import (
    ADVICE,
    ERROR,
    NO_EFFECT,
    PLANNED,
    RENAMED,
    SILENT,
    Case,
    tasksets,
)
from tests.unit.config.rules.explorer_rules import EXPLORER, SYNCHRONIZER
from tests.unit.config.rules.model_rules import GPUS, MODEL
from tests.unit.config.rules.run_rules import OLDER, THE_RUN
from tests.unit.subtests import as_subtests
from trinity.config.check import CheckReport, check_file
from trinity.config.schema.experiment import deep_merge

CASES = [*OLDER, *THE_RUN, *ALGORITHM, *MODEL, *GPUS, *SYNCHRONIZER, *EXPLORER, *BUFFER, *TRAINER]


def checked(directory: Path, case: Case) -> CheckReport:
    file = directory / "x.yaml"
    file.write_text(yaml.safe_dump(deep_merge(case.base, case.changes)))
    return check_file(file)


@as_subtests("case", CASES)
def test_the_rule_holds(tmp_path: Path, case: Case) -> None:
    report = checked(tmp_path, case)
    said: dict[str, list[str]] = {ERROR: list(report.errors), ADVICE: list(report.advice)}
    for status in (PLANNED, NO_EFFECT, RENAMED):
        said[status] = [f"{one} {one.text}" for one in report.notices if one.status is status]
    if case.told != SILENT:
        assert any(case.said in line for line in said.pop(case.told)), report
    assert [line for lines in said.values() for line in lines] == []
    if case.told == ERROR:
        return
    if not any(one.key == "mode" for one in report.notices):
        assert report.plan
        assert case.holds(report.plan.stages[0])


def test_a_file_says_the_same_however_often_it_is_read(tmp_path: Path) -> None:
    case = Case(name="", changes=tasksets({"path": "/a"}))
    once, again = checked(tmp_path, case), checked(tmp_path, case)
    assert once.plan == again.plan
    assert once.reading
    assert again.reading
    assert once.reading.written == again.reading.written


def test_nothing_is_made_where_a_run_would_be(tmp_path: Path) -> None:
    case = Case(name="", changes={"checkpoint_root_dir": str(tmp_path / "runs")})
    report = checked(tmp_path, case)
    assert report.plan
    assert report.plan.job_dir == str(tmp_path / "runs/demo/sums")
    assert not (tmp_path / "runs").exists()


def test_a_stage_has_the_rest_of_a_section_from_the_top(tmp_path: Path) -> None:
    stages = [{"stage_name": "one", "trainer": {"save_interval": 7}}]
    report = checked(
        tmp_path, Case(name="", changes={"trainer": {"grad_clip": 0.5}, "stages": stages})
    )
    assert report.plan
    (plan,) = report.plan.stages
    assert (plan.config.trainer.save_interval, plan.config.trainer.grad_clip) == (7, 0.5)
    assert plan.config.buffer.batch_size == 4
