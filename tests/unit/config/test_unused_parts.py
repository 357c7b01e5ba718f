"""Parts that nothing reads are told before the start, as far as built-in parts tell."""

import inspect
import json
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, write_model
from tests.unit.config.preflight import check
from tests.unit.subtests import as_subtests
from trinity.config.checks.advice import advise
from trinity.config.checks.scorers import ASKS_FIRST_MODEL
from trinity.config.checks.unused_parts import (
    CHANGES_REWARDS,
    READS_REWARDS,
    WITHOUT_REWARDS,
)
from trinity.config.plan.auxiliary import REWARDED_BY_ITSELF
from trinity.config.planning import plan_experiment
from trinity.operators import OPERATORS
from trinity.plugins import WORKFLOWS
from trinity.rft.checks.workflow import OURS

JUDGE: object = {"name": "judge", "model_path": "/models/judge"}


def said(**changes: object) -> list[str]:
    return [
        text
        for text in advise(plan_experiment(config(GRPO, **changes)))
        if "not in the hub's cache" not in text
    ]


def tasks(workflow: str, **taskset: object) -> dict[str, object]:
    return {"explorer_input": {"taskset": {"default_workflow_type": workflow, **taskset}}}


@as_subtests("workflow", sorted(WORKFLOWS.builtins))
def test_an_auxiliary_model_is_asked_by_the_workflows_that_say_so(workflow: str) -> None:
    queue = {"storage_type": "queue"} if workflow == "clients" else {}
    told = [
        text
        for text in said(
            buffer=tasks(workflow, **queue),
            explorer={"auxiliary_models": [JUDGE]},
            synchronizer={"sync_offset": 1},
        )
        if "never asked" in text
    ]
    if workflow in ASKS_FIRST_MODEL:
        assert told == []
    else:
        assert len(told) == 1
        assert "`explorer.auxiliary_models[0]` (judge) is started and never asked" in told[0]
        assert f"`{workflow}` asks none" in told[0]


@as_subtests("workflow", sorted(WORKFLOWS.builtins))
def test_the_lists_are_what_the_code_of_workflows_does(workflow: str) -> None:
    made = WORKFLOWS.get(workflow)
    classes = [base for base in made.__mro__ if base.__module__.startswith(OURS)]
    own = [base for base in classes if base.__name__ not in ("Workflow", "HostedWorkflow")]
    code = "".join(map(inspect.getsource, own))
    asks = "auxiliary_model_wrappers" in code
    if workflow == "math_trainable_ruler_workflow":  # inherits the judge and does not ask it
        asks = "self._judge(" in inspect.getsource(made)
    if workflow == "agent":  # only where its arguments say so
        asks = False
    assert asks is (workflow in ASKS_FIRST_MODEL)
    calls = ("self._reward(", "self.reward_fn(", "self._measure(", "_score(")
    scores = any(call in inspect.getsource(made) for call in calls)
    if workflow in REWARDED_BY_ITSELF:
        assert not scores


def test_an_agents_judge_is_asked_where_its_arguments_say_so() -> None:
    models = {"auxiliary_models": [JUDGE]}
    judged = tasks("agent", workflow_args={"command": ["true"], "rubric_judge": True})
    assert not [text for text in said(buffer=judged, explorer=models) if "never asked" in text]


def test_further_auxiliary_models_are_told() -> None:
    second: object = {"name": "second", "model_path": "/models/second"}
    models = {"auxiliary_models": [JUDGE, second]}
    (told,) = said(buffer=tasks("rubric_judge_workflow"), explorer=models)
    assert "`explorer.auxiliary_models[1]` (second)" in told and "asks the first one alone" in told


def test_what_users_parts_ask_is_not_judged_before_the_start() -> None:
    models = {"auxiliary_models": [JUDGE]}
    for taskset in (
        {"default_reward_fn_type": "my_rewards.judged"},
        {"format": {"workflow_key": "workflow"}},
        {"format": {"reward_fn_key": "reward"}},
    ):
        assert said(buffer=tasks("simple_workflow", **taskset), explorer=models) == []


def test_rewards_of_workflows_that_score_by_themselves_are_told() -> None:
    changes = {"default_reward_fn_type": "math_reward"}
    told = said(buffer=tasks("sudoku_workflow", **changes))
    assert "`default_reward_fn_type: math_reward` of taskset" in told[0]


def test_what_a_workflow_computes_for_another_algorithm_is_told() -> None:
    greedy = tasks("greedy_baseline_workflow")
    (told,) = said(buffer=greedy)
    assert "computes the reward of a greedy answer for each answer" in told
    assert "`advantage_fn: grpo` does not read" in told
    read = said(buffer=greedy, algorithm={"algorithm_type": "grpo", "advantage_fn": "remax"})
    assert not any("greedy" in text for text in read)
    hinted = tasks("self_distill_workflow")
    assert "the hinted policy's log-probabilities" in said(buffer=hinted)[0]
    assert said(buffer=hinted, algorithm={"algorithm_type": "sdpo"}) == []


def test_what_a_users_operator_may_read_is_not_called_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from trinity.operators.rollouts import Changes, Rollouts\n"
        "def of_teachers(rollouts: Rollouts) -> Changes:\n"
        "    return Changes()\n"
    )
    (tmp_path / "teachers_own.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    greedy = tasks("greedy_baseline_workflow")
    assert said(buffer=greedy, data_processor=with_operators("teachers_own.of_teachers")) == []
    assert len(said(buffer=greedy, data_processor=with_operators("reward_filter"))) == 1


def with_operators(*names: str) -> dict[str, object]:
    arguments: dict[str, object] = {
        "overlong_penalty": {"max_response_length": 64, "cache_length": 8},
        "reward_filter": {"threshold": 0.5},
    }
    listed = [{"name": name, "args": arguments.get(name, {})} for name in names]
    return {"experience_pipeline": {"operators": listed}}


def test_rewards_that_no_advantage_reads_are_not_worth_changing() -> None:
    parts = {"algorithm_type": "grpo", "advantage_fn": "gdpo"}
    penalty = with_operators("overlong_penalty")
    (told,) = said(algorithm=parts, data_processor=penalty)
    assert "the rewards that `overlong_penalty` changes are not trained on" in told
    assert "`advantage_fn: gdpo` reads the parts of rewards as they came" in told
    assert said(data_processor=penalty) == []
    read = with_operators("overlong_penalty", "reward_filter")
    assert said(algorithm=parts, data_processor=read) == []
    assert OPERATORS.builtins.keys() >= CHANGES_REWARDS | READS_REWARDS
    assert "gdpo" in WITHOUT_REWARDS


def test_mappers_of_data_juicer_change_nothing() -> None:
    def juiced(*names: str) -> list[str]:
        operator = {"name": "data_juicer", "args": {"operators": [{name: {}} for name in names]}}
        pipeline = {"experience_pipeline": {"operators": [operator]}}
        return said(data_processor=pipeline, service={"data_juicer": {"auto_start": True}})

    (told,) = juiced("lower_case_mapper")
    assert "`data_juicer` with mappers alone changes nothing" in told
    assert juiced("lower_case_mapper", "text_length_filter") == []


def test_priorities_without_a_replay_are_told() -> None:
    rows = {"experience_buffer": {"replay_buffer": {"priority_fn": "decay_limit_randomization"}}}
    (told,) = said(buffer={"trainer_input": rows})
    assert "replay_buffer` has no effect: `replay_buffer.enable` is false" in told


@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen2ForSequenceClassification",
        "LlamaForTokenClassification",
        "Qwen2ForRewardModel",
        "Qwen2ForProcessRewardModel",
        "LlamaForRewardModelWithGating",
    ],
)
def test_a_model_that_scores_is_refused_as_the_policy(architecture: str, tmp_path: Path) -> None:
    scoring = write_model(tmp_path / "scoring")
    file = Path(scoring) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [architecture]}))
    assert f"`model.model_path` names a {architecture}" in check(
        tmp_path, model={"model_path": scoring}
    )
