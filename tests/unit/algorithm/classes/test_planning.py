"""Plans with parts that are classes of Trinity-RFT, and what is refused before a run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.buffer.domain.operators import PipelineFunction
from services.buffer.workers.functions import FunctionRunner
from tests.unit.algorithm.classes import plugin
from trinity.algorithm.advantage.samples import Samples
from trinity.config.plan.algorithm import resolve_algorithm
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.schema.algorithm import AlgorithmConfig
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.rft.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trinity.rft.algorithm.sample_strategy import DefaultSampleStrategy, adapt_strategy

HERE = plugin.__name__


def resolved(**algorithm: Any) -> ResolvedAlgorithm:
    return resolve_algorithm(AlgorithmConfig(**algorithm), "both")


def refusal(**algorithm: Any) -> str:
    with pytest.raises(UserError) as caught:
        resolved(**algorithm)
    return str(caught.value)


def test_an_algorithm_that_is_a_class_decides_the_parts() -> None:
    algorithm = resolved(algorithm_type="classes_algorithm")
    assert algorithm.repeat_times == 1, "the file's, which has 1 if nothing is written"
    assert algorithm.advantage_fn == "classes_centred"
    assert algorithm.advantage_fn_args == {"scale": 2.0}
    assert algorithm.entropy_loss_fn == "classes_entropy"
    assert algorithm.kl_loss_fn == "none"
    assert algorithm.needs_reference, "its loss wants the reference's log-probabilities"
    assert not algorithm.advantage_in_trainer


def test_parts_are_found_by_dotted_path_too() -> None:
    algorithm = resolved(
        advantage_fn=f"{HERE}.Tokens",
        policy_loss_fn=f"{HERE}.Clipped",
        policy_loss_fn_args={"bound": 0.1},
        kl_loss_fn=f"{HERE}.Halved",
        sample_strategy=f"{HERE}.Experts",
    )
    assert algorithm.advantage_in_trainer
    assert algorithm.policy_loss_fn_args == {"bound": 0.1}
    assert algorithm.kl_loss_fn == f"{HERE}.Halved"
    assert algorithm.kl_loss_fn_args["kl_coef"] == 0.25, "the class's own"
    assert algorithm.sample_strategy == "mix", "what the class stands for"
    assert algorithm.sample_strategy_args["expert_data_ratio"] == 0.75
    assert algorithm.sampling.expert_data_ratio == 0.75


def test_the_mode_of_the_algorithm_reaches_a_class_that_takes_one() -> None:
    mode = "seq-mean-token-sum"
    chosen = resolved(policy_loss_fn="classes_clipped", loss_agg_mode=mode)
    assert chosen.policy_loss_fn_args == {"loss_agg_mode": mode}
    assert resolved(policy_loss_fn="classes_clipped").policy_loss_fn_args == {}, "its own already"
    usual = resolved(algorithm_type="classes_algorithm").policy_loss_fn_args
    assert usual == {"loss_agg_mode": "token-mean"}, "the algorithm's goes before the class's"


def test_a_loss_that_wants_what_the_trainer_replaces_is_refused() -> None:
    @POLICY_LOSS_FN.register_module("classes_both")
    class Both(plugin.Clipped):
        """Wants two old policies."""

        def __call__(  # type: ignore[override]
            self, logprob: Any, old_logprob: Any, rollout_log_probs: Any, action_mask: Any
        ) -> tuple[Any, dict[str, Any]]:
            """Is not called."""
            raise AssertionError

    assert resolved(policy_loss_fn="classes_both").policy_loss_fn == "classes_both"
    said = refusal(policy_loss_fn="classes_both", bypass_old_logprobs=False)
    assert "wants `rollout_log_probs`, which the trainer replaces" in said
    assert resolved(policy_loss_fn="classes_clipped", bypass_old_logprobs=False)


def test_mistakes_are_named_with_what_is_near() -> None:
    said = refusal(
        policy_loss_fn="classes_clipped",
        policy_loss_fn_args={"bounds": 1.0},
        kl_loss_fn="classes_halvd",
        entropy_loss_fn="classes_entropi",
        sample_strategy="classes_expert",
    )
    assert "`algorithm.policy_loss_fn_args.bounds`: did you mean `bound`?" in said
    assert "`algorithm.kl_loss_fn: classes_halvd` is not supported: did you mean" in said
    assert "`algorithm.entropy_loss_fn: classes_entropi` is not supported" in said
    assert "`algorithm.sample_strategy: classes_expert` is not supported" in said
    wrong = refusal(policy_loss_fn="classes_clipped", policy_loss_fn_args={"bound": "wide"})
    assert "`algorithm.policy_loss_fn_args.bound` must be a number, not 'wide'" in wrong


def test_a_strategy_that_reads_rows_itself_is_refused() -> None:
    class Reading(DefaultSampleStrategy):
        """Reads rows."""

        async def sample(self, step: int, **kwargs: Any) -> Any:
            """Is not called."""

    with pytest.raises(UserError, match="Reading defines `sample`, which is not called here"):
        adapt_strategy("reading", Reading)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("def check_config(cls, config): pass", "defines `check_config`, which is not called"),
        ("schema = 'rows'", "`schema` of Changed is 'rows': give one of experience"),
    ],
)
def test_what_an_algorithm_cannot_decide_is_refused(body: str, complaint: str) -> None:
    namespace: dict[str, Any] = {"Algorithm": plugin.Algorithm}
    indented = f"    @classmethod\n    {body}" if body.startswith("def") else f"    {body}"
    exec(f"class Changed(Algorithm):\n{indented}\n", namespace)
    from trinity.rft.algorithm.algorithm import adapt_algorithm

    with pytest.raises(UserError, match=complaint):
        adapt_algorithm("changed", namespace["Changed"])


def test_an_unknown_key_of_an_algorithm_is_named() -> None:
    from trinity.rft.algorithm.algorithm import adapt_algorithm

    class Keyed(plugin.Algorithm):
        """Sets something else."""

        @classmethod
        def default_config(cls) -> dict[str, Any]:
            return {"advantage_fn": "grpo", "learning_rate": 1.0}

    with pytest.raises(UserError, match="gives learning_rate, which no algorithm decides"):
        adapt_algorithm("keyed", Keyed)


TAKEN = """
from trinity.algorithm.advantage_fn.grpo_advantage import GRPOGroupedAdvantage
from trinity.algorithm.advantage_fn import ADVANTAGE_FN
from trinity.algorithm.policy_loss_fn.policy_loss_fn import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator
from trinity.buffer.selector.selector import SELECTORS, ShuffleSelector

@ADVANTAGE_FN.register_module("grpo")
class Ours(GRPOGroupedAdvantage):
    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            exp.advantages = 42.0 * exp.action_mask
        return exps, {}

@POLICY_LOSS_FN.register_module("ppo")
class Loss(PPOPolicyLossFn): pass

@EXPERIENCE_OPERATORS.register_module("reward_filter")
class Filter(ExperienceOperator):
    def process(self, exps):
        return [exp for exp in exps if exp.reward > 0.5], {}

@SELECTORS.register_module("shuffle")
class Shuffle(ShuffleSelector): pass
"""
ASKING = """
from trinity.config.plan.algorithm import resolve_algorithm
from trinity.config.plan.data import resolve_selector
from trinity.config.schema.algorithm import AlgorithmConfig
from trinity.config.schema.data import DataSelectorConfig
from trinity.errors import UserError
from trinity.operators import OPERATORS
algorithm = resolve_algorithm(AlgorithmConfig(), "both")
print(algorithm.advantage_fn, algorithm.policy_loss_fn, algorithm.loss_reads_reference)
print(OPERATORS.plan_name("reward_filter"), OPERATORS.plan_name("reward_std_filter"))
print(resolve_selector(DataSelectorConfig(), 1, "here").selector_type)
try:
    resolve_selector(DataSelectorConfig(selector_type="shuffle"), 1, "here")
except UserError as error:
    print(error)
"""


def test_a_class_that_takes_the_name_of_a_built_in_part_is_used_by_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken_names.py").write_text(TAKEN)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    asked = subprocess.run(
        [sys.executable, "-c", ASKING], capture_output=True, text=True, check=True
    )
    lines = asked.stdout.splitlines()
    assert lines[0] == "taken_names.Ours taken_names.Loss False"
    assert lines[1] == "taken_names.Filter reward_std_filter"
    assert lines[2] == "sequential"
    assert "`data_selector.selector_type: shuffle` is a selector of your own" in lines[3]


async def test_the_buffers_process_calls_such_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken_names.py").write_text(TAKEN)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    part = Samples.of_groups([0.0, 1.0])
    own = PipelineFunction(name="taken_names.Ours", arguments={})
    async with FunctionRunner(limit_seconds=60, memory_bytes=2**32) as functions:
        await functions.load_functions("a", [own])
        needs = await functions.needs("a", own)
        asked = PipelineFunction(name=own.name, arguments={}, needs=needs)
        (found,) = await functions.call_function("a", asked, [part])
    assert found.values.tolist() == [42.0, 42.0]
