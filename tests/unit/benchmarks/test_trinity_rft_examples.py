"""Example files of a copy of Trinity-RFT are counted, with the plug-ins that go with each."""

from pathlib import Path

import yaml

from benchmarks.trinity_rft_examples import example_files, outcomes_of, table
from tests.unit.config.builders import GRPO
from trinity.config.schema.experiment import deep_merge

ASKS = """from trinity.common.workflows.workflow import WORKFLOWS, SimpleWorkflow


@WORKFLOWS.register_module("asks_twice")
class AsksTwice(SimpleWorkflow):
    def run(self):
        return []
"""


def write_example(root: Path, name: str, **changes: object) -> None:
    folder = root / "examples" / name
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(deep_merge(GRPO, changes)))


def with_workflow(name: str) -> dict[str, object]:
    reward = "exact_match_reward"
    return {"explorer_input": {"default_workflow_type": name, "default_reward_fn_type": reward}}


def test_right_files_and_those_that_may_start_are_counted(tmp_path: Path) -> None:
    (tmp_path / "trinity/common/workflows").mkdir(parents=True)
    write_example(tmp_path, "good", buffer=with_workflow("math_workflow"))
    write_example(tmp_path, "planned", monitor={"monitor_type": "swanlab"})
    write_example(tmp_path, "wrong", buffer=with_workflow("asks_twice"))
    write_example(tmp_path, "own", buffer=with_workflow("asks_twice"))
    own = tmp_path / "examples/own"
    (own / "plug").mkdir()
    (own / "plug/asks.py").write_text(ASKS)
    (own / "README.md").write_text(
        "trinity run --config examples/own/run.yaml --plugin-dir examples/own/plug"
    )
    (own / "recipe.yaml").write_text("process: []")
    assert len(example_files(tmp_path)) == 4
    outcomes = {
        outcome.path.parent.name: outcome
        for outcome in outcomes_of(tmp_path, example_files(tmp_path))
    }
    assert outcomes["good"].may_start and outcomes["own"].may_start
    assert not outcomes["planned"].errors and not outcomes["planned"].may_start
    assert "there is no workflow 'asks_twice'" in outcomes["wrong"].errors[0]
    assert [*table([*outcomes.values()])][2:] == [
        "| all | 4 |",
        "| no mistake | 3 |",
        "| may start | 2 |",
    ]
