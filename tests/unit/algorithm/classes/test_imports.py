"""Import paths of Trinity-RFT for parts of algorithms, operators and rewards."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.subtests import as_subtests
from trinity import rft
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, check_reward

RFT = Path(rft.__file__).parent
SHELLS = {"algorithm", "buffer", "common", "utils"}
IMPORTS = [
    ("trinity.algorithm", "ADVANTAGE_FN AdvantageFn ALGORITHM_TYPE AlgorithmType KL_FN KLFn"),
    ("trinity.algorithm", "ENTROPY_LOSS_FN EntropyLossFn POLICY_LOSS_FN PolicyLossFn"),
    ("trinity.algorithm", "SAMPLE_STRATEGY SampleStrategy"),
    ("trinity.algorithm.advantage_fn.advantage_fn", "AdvantageFn GroupAdvantage ADVANTAGE_FN"),
    ("trinity.algorithm.advantage_fn.grpo_advantage", "GRPOAdvantageFn GRPOGroupedAdvantage"),
    ("trinity.algorithm.advantage_fn.multi_step_grpo_advantage", "StepWiseGRPOAdvantageFn"),
    ("trinity.algorithm.advantage_fn.ppo_advantage", "PPOAdvantageFn"),
    ("trinity.algorithm.algorithm", "GRPOAlgorithm MIXAlgorithm SFTAlgorithm ALGORITHM_TYPE"),
    ("trinity.algorithm.entropy_loss_fn.entropy_loss_fn", "DefaultEntropyLossFn"),
    ("trinity.algorithm.key_mapper", "ALL_MAPPERS KeyMapper"),
    ("trinity.algorithm.kl_fn.kl_fn", "KLFn K1Fn K2Fn LowVarKLFn DummyKLFn"),
    ("trinity.algorithm.policy_loss_fn.policy_loss_fn", "PolicyLossFn POLICY_LOSS_FN"),
    ("trinity.algorithm.policy_loss_fn.ppo_policy_loss", "PPOPolicyLossFn"),
    ("trinity.algorithm.policy_loss_fn.chord_policy_loss", "MIXCHORDPolicyLossFn SFTISLossFn"),
    ("trinity.algorithm.sample_strategy.mix_sample_strategy", "MixSampleStrategy"),
    ("trinity.algorithm.sample_strategy.sample_strategy", "SampleStrategy DefaultSampleStrategy"),
    ("trinity.algorithm.utils", "aggregate_loss masked_loss masked_mean masked_var masked_whiten"),
    ("trinity.buffer.operators", "EXPERIENCE_OPERATORS ExperienceOperator RewardFilter"),
    ("trinity.buffer.operators.experience_operator", "ExperienceOperatorV1 ExperienceOperator"),
    ("trinity.buffer.operators.filters.reward_filter", "RewardSTDFilter"),
    ("trinity.buffer.operators.mappers.reward_shaping_mapper", "RewardShapingMapper"),
    ("trinity.buffer.selector", "SELECTORS BaseSelector"),
    ("trinity.buffer.selector.selector", "BaseSelector DifficultyBasedSelector"),
    ("trinity.buffer.storage.queue", "PriorityFunction PRIORITY_FUNC"),
    ("trinity.common.rewards", "REWARD_FUNCTIONS RewardFn MathRewardFn"),
    ("trinity.common.rewards.accuracy_reward", "AccuracyReward"),
    ("trinity.common.rewards.eval_utils", "compute_score_v0 validate_think_pattern"),
    ("trinity.common.rewards.math_reward", "MathRewardFn MathBoxedRewardFn"),
    ("trinity.common.rewards.reward_fn", "REWARD_FUNCTIONS RewardFn"),
    ("trinity.common.rewards.qwen25_eval", "verify_math_answer"),
    ("trinity.common.rewards.naive_dapo_score", "compute_score"),
    ("trinity.algorithm.sample_strategy.utils", "representative_sample"),
]


@as_subtests(("module", "names"), IMPORTS)
def test_names_are_where_files_of_trinity_rft_look(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert all(getattr(found, name) is not None for name in names.split())


@pytest.mark.parametrize(
    "line",
    [
        "from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOLoss",
        "from trinity.manager.state_manager import StateManager",
        "from trinity.buffer.reader.sql_reader import SQLReader",
    ],
)
def test_what_is_not_here_says_so(line: str) -> None:
    with pytest.raises((ImportError, UserError), match=r"of Trinity-RFT.* not here"):
        exec(line, {})


def test_a_reader_of_rows_is_told_what_to_do() -> None:
    with pytest.raises(ImportError, match=r"reader of your own is not called: take its file out"):
        exec("from trinity.buffer.reader.file_reader import FILE_READERS", {})


def test_what_a_part_would_call_is_refused_when_it_is_called() -> None:
    read: Any = importlib.import_module("trinity.buffer").get_buffer_reader
    with pytest.raises(UserError, match=r"get_buffer_reader of Trinity-RFT is not here: `buffer"):
        read()


def test_sections_of_the_configuration_are_there_for_annotations() -> None:
    from trinity.rft.common.config import BufferConfig, Config, OperatorConfig

    assert {
        kind.__module__.rpartition(".")[0] for kind in (BufferConfig, Config, OperatorConfig)
    } == {"trinity.config.schema"}
    with pytest.raises(ImportError, match="the section is DataSelectorConfig"):
        importlib.import_module("trinity.common.config").TaskSelectorConfig  # noqa: B018


def test_helpers_of_trinity_rft_compute_what_they_say() -> None:
    modules = ("naive_dapo_score", "qwen25_eval")
    scores, grading = (importlib.import_module(f"trinity.common.rewards.{own}") for own in modules)
    match_answer, grade_answer = scores.match_answer, scores.grade_answer
    fix_fracs, parse_with_timeout = grading.fix_fracs, grading.parse_with_timeout
    assert match_answer(r"<think>\boxed{1}</think> so \boxed{2}") == (True, "2")
    assert match_answer("so 2") == (False, "so 2")
    assert (grade_answer(" 2 ", "2"), grade_answer(None, "2")) == ((True, "2"), (False, ""))
    assert fix_fracs(r"\frac12 + \frac{3}{4}") == r"\frac{1}{2} + \frac{3}{4}"
    assert parse_with_timeout("2", parsing_timeout=1) == ["2"]


def test_metrics_and_times_are_gathered() -> None:
    from trinity.rft.utils.metrics import aggregate_metrics
    from trinity.rft.utils.monitor import gather_metrics
    from trinity.rft.utils.timer import Timer

    given: list[dict[str, object]] = [{"a": 1, "b": "x", "c:sum": 2}, {"a": 3, "c:sum": 5}]
    gathered = aggregate_metrics(given, "p", ["mean", "std"])
    assert gathered == {"p/a/mean": 2.0, "p/a/std": 1.0, "p/c/sum": 7.0}
    assert gather_metrics([{"a": 1}], "p") == {"p/a/mean": 1.0, "p/a/max": 1.0, "p/a/min": 1.0}
    with pytest.raises(ValueError, match="no statistic 'median'"):
        gather_metrics([], "p", ["median"])
    metrics: dict[str, float] = {}
    with Timer(metrics, "seconds"):
        pass
    assert 0 <= metrics["seconds"] < 60


def test_bases_need_neither_torch_nor_numpy() -> None:
    """A buffer's image has no torch: a file whose classes do without loads there."""
    source = (
        "import sys; sys.modules['torch'] = None\n"
        "import trinity.algorithm.advantage_fn, trinity.algorithm.policy_loss_fn\n"
        "import trinity.algorithm.kl_fn, trinity.algorithm.entropy_loss_fn\n"
        "import trinity.algorithm.algorithm, trinity.buffer.operators, trinity.buffer.selector\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


REWARD = "<think>\nx\n</think>\n<answer>\n4\n</answer>"


@as_subtests(
    ("name", "arguments", "call", "expected"),
    [
        ("FormatReward", {}, {"response": REWARD}, {"format_score": 0.1}),
        ("FormatReward", {}, {"response": "4"}, {"format_score": -0.1}),
        ("FormatReward", {"pattern": "4"}, {"response": "4 and more"}, {"format_score": 0.1}),
        ("AccuracyReward", {}, {"response": "4", "truth": "4.0"}, {"accuracy": 1.0}),
        ("AccuracyReward", {}, {"response": "4", "truth": "5"}, {"accuracy": 0.0}),
        (
            "AccuracyReward",
            {"answer_parser": lambda text: [text[-1]]},
            {"response": "it is 4", "truth": "x 4"},
            {"accuracy": 1.0},
        ),
        (
            "MathBoxedRewardFn",
            {},
            {"response": r"\boxed{4}", "truth": "4", "with_think": True, "info": {}},
            {"accuracy": 1.0, "format_score": -0.1},
        ),
        (
            "MathRewardFn",
            {},
            {"response": "<think>a</think> <answer>4</answer>", "truth": "4"},
            {"accuracy": 1.0, "format_score": 0.1},
        ),
        (
            "CountDownRewardFn",
            {},
            {
                "response": "<answer>(1+2)*3</answer>",
                "truth": '{"target": 9, "numbers": [1, 2, 3]}',
            },
            {"score": 1.0},
        ),
        (
            "MathDAPORewardFn",
            {"enable_overlong_penalty": True, "max_response_length": 100, "cache_length": 20},
            {"response": r"\boxed{4}", "truth": "4", "response_token": [0] * 90},
            {"accuracy": 1.0, "format_score": -0.5},
        ),
    ],
)
def test_a_reward_of_trinity_rft_takes_what_its_workflows_give(
    name: str, arguments: dict[str, Any], call: dict[str, Any], expected: dict[str, float]
) -> None:
    source = getattr(importlib.import_module("trinity.common.rewards"), name)
    assert source(**arguments)(**call) == pytest.approx(expected)


def test_a_reward_of_a_user_is_built_and_called() -> None:
    rewards = importlib.import_module("trinity.common.rewards")

    class Short(rewards.RewardFn):  # type: ignore[misc, name-defined]
        """Wants a short answer of few tokens."""

        def __init__(self, most: int = 3, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.most = most

        def __call__(
            self, response: str, response_token: Any, truth: str | None = None, **kwargs: Any
        ) -> dict[str, float]:
            assert {"prompt", "messages"} <= kwargs.keys()
            return {"short": float(len(response_token) <= self.most and response == truth)}

    rewards.REWARD_FUNCTIONS.register_module("classes_short")(Short)
    source = REWARDS.get("classes_short")
    check_reward(source, {"most": 2, "anything": 1}, "classes_short")
    bound = BoundReward(source, {"most": 2}, "classes_short")
    known = {"response": "4", "truth": "4", "prompt": "2+2=", "messages": []}
    assert bound(**known, response_token=[1, 2]) == {"short": 1.0}
    assert bound(**known, response_token=[1, 2, 3]) == {"short": 0.0}


def test_each_module_of_trinity_rft_is_one_under_both_names() -> None:
    """Two modules of one file would have two registries, and classes that are not the same."""
    files = (path.relative_to(RFT).with_suffix("") for path in RFT.rglob("*.py"))
    ours = {"trinity.rft." + ".".join(path.parts).removesuffix(".__init__") for path in files}
    of_shells = (name for name in ours if name.split(".")[2] in SHELLS)
    shells = sorted(set(of_shells) - {"trinity.rft.algorithm"})  # a room of ours has that name
    assert len(shells) > 20
    for name in shells:
        theirs = name.replace(".rft.", ".", 1)
        assert importlib.import_module(theirs) is importlib.import_module(name)
        assert importlib.import_module(name).__name__ == name
