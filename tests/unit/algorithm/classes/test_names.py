"""No name of ours is taken in users' parts: arguments may have any name that Python allows."""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.source_names import ROOT
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.algorithm_type import Part
from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.evaluation import compute_priorities
from trinity.algorithm.signature import signature_of
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.config.plan.algorithm import AlgorithmPart
from trinity.errors import UserError
from trinity.operators.group_reward import group_reward
from trinity.operators.rollouts import Content, Rollouts
from trinity.rewards.reward import BoundReward, check_reward
from trinity.rft.algorithm.advantage_fn import AdvantageFn
from trinity.rft.algorithm.advantage_fn.adapting import (
    TokenData,
    adapt_advantage,
    group_class,
    token_class,
)
from trinity.rft.algorithm.entropy_loss_fn import EntropyLossFn
from trinity.rft.algorithm.entropy_loss_fn.adapting import adapted_entropy_loss
from trinity.rft.algorithm.kl_fn import KLFn
from trinity.rft.algorithm.kl_fn.adapting import adapted_kl
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn
from trinity.rft.algorithm.policy_loss_fn.adapting import adapted_loss, loss_class
from trinity.rft.algorithm.sample_strategy import MixSampleStrategy, adapt_strategy
from trinity.rft.buffer.experiences import experiences_of
from trinity.rft.buffer.operators import ExperienceOperator
from trinity.rft.buffer.operators.adapting import adapt_operator, operator_class
from trinity.rft.buffer.storage import PriorityFunction, adapt_priority
from trinity.user_code.adapted_part import set_attributes
from trinity.workflows.hosting import NamedReward, reward_class

PLACES = (
    *("trinity/algorithm", "trinity/operators", "trinity/rewards", "trinity/workflows"),
    *("trinity/rft/algorithm", "trinity/rft/buffer", "trinity/rft/workflows"),
    *("trinity/config/plan", "trinity/plugins.py", "trinity/user_code/adapted_part.py"),
    *("trinity/user_code/values.py", "services/explorer/user_process"),
    *("services/buffer/workers", "services/buffer/pipeline"),
    *("services/trainer/learner", "services/trainer/estimation.py"),
)
"""The code on the way from a file's arguments to users' parts."""
BY_TENSORS = {"loss_agg_mode", "backend"}
"""Arguments that mean something by their names, as in Trinity-RFT."""
FIRST = "an_input_"
"""Users' names of the input in these functions."""


@cache
def internal_names() -> list[str]:
    """Every name of a parameter of a function there, but those that no argument can have."""
    files = [
        path
        for place in PLACES
        for path in ([ROOT / place] if place.endswith(".py") else _in(place))
    ]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return sorted(names - BY_TENSORS - {"self"})


def _in(place: str) -> list[Path]:
    return sorted((ROOT / place).rglob("*.py"))


@cache
def numbered() -> Mapping[str, Any]:
    """A number for each of these names."""
    return {name: float(place) for place, name in enumerate(internal_names())}


def function(body: str, head: str = "") -> Callable[..., Any]:
    """A user's function that takes all names; `seen` in its body is what it was given."""
    takes = ", ".join(f"{name}=None" for name in internal_names())
    given = ", ".join(f"{name!r}: {name}" for name in internal_names())
    source = f"def own({FIRST}{head}, *, {takes}):\n    seen = {{{given}}}\n    {body}\n"
    namespace: dict[str, Any] = {"check": check}
    exec(source, namespace)
    made: Callable[..., Any] = namespace["own"]
    return made


def check(seen: Mapping[str, object]) -> None:
    assert dict(seen) == numbered()


def constructor() -> Callable[..., None]:
    """A constructor with all names, which keeps them apart."""
    takes = ", ".join(f"{name}=None" for name in internal_names())
    given = ", ".join(f"{name!r}: {name}" for name in internal_names())
    namespace: dict[str, Any] = {}
    exec(f"def __init__({FIRST}, *, {takes}):\n    {FIRST}.seen_ = {{{given}}}\n", namespace)
    made: Callable[..., None] = namespace["__init__"]
    return made


def class_of(base: type, *, method: str = "__call__", **members: Any) -> Any:
    """A user's class that takes all names, and its method, which checks them."""
    own = members.pop("does")

    def called(self: Any, *given: Any, **named: Any) -> Any:
        check(self.seen_)
        return own(*given, **named)

    namespace = {
        "__init__": constructor(),
        method: called,
        "default_args": classmethod(lambda _: {}),
        "default_config": classmethod(lambda _: {}),
        **members,
    }
    return type("Own", (base,), namespace)


CONTENTS = [Content(prompt_text="a", response_text="b", info={}, metrics={})] * 2
ROLLOUTS = Rollouts.of(Samples.of_groups([0.0, 1.0]), contents=CONTENTS)
CANDIDATE = Candidate(model_version=1, use_count=0, reward=1.0, advantage=0.5, normal=0.0)
ROWS_BT = torch.zeros(1, 2)
INPUTS = PolicyInputs(
    logprobs_BT=ROWS_BT.clone().requires_grad_(),
    old_logprobs_BT=ROWS_BT,
    advantages_BT=ROWS_BT,
    mask_BT=torch.ones(1, 2, dtype=torch.bool),
)
ENTROPY = EntropyInputs(
    entropy_BT=ROWS_BT, mask_BT=INPUTS.mask_BT, is_expert_B=None, agg_mode="token-mean"
)
BATCH = TokenBatch(
    rewards_BT=np.zeros((1, 2)),
    mask_BT=np.ones((1, 2), dtype=np.bool_),
    lengths_B=np.array([2]),
    groups_B=np.array([0]),
    logprobs_BT=np.zeros((1, 2)),
    rollout_logprobs_BT=np.zeros((1, 2)),
)


def advantages(exps: Any) -> Any:
    for exp in exps:
        exp.advantages = torch.ones(1)
    return exps, {}


def token_advantages(exps: Any) -> Any:
    exps.batch["advantages"] = exps.batch["token_level_rewards"]
    return exps, {}


CLASSES: Mapping[str, tuple[Callable[..., Any], Any, Any, Part]] = {
    "group advantage": (
        adapt_advantage,
        class_of(AdvantageFn, does=advantages, compute_in_trainer=classmethod(lambda _: False)),
        ROLLOUTS,
        "advantage_fn",
    ),
    "token advantage": (
        adapt_advantage,
        class_of(AdvantageFn, does=token_advantages),
        BATCH,
        "advantage_fn",
    ),
    "policy loss": (
        adapted_loss,
        class_of(PolicyLossFn, does=lambda logprob: (logprob.sum(), {})),
        INPUTS,
        "policy_loss_fn",
    ),
    "entropy loss": (
        adapted_entropy_loss,
        class_of(EntropyLossFn, does=lambda entropy, **_: (entropy.sum(), {})),
        ENTROPY,
        "entropy_loss_fn",
    ),
    "operator": (
        adapt_operator,
        class_of(ExperienceOperator, method="process", does=lambda exps: (exps, {})),
        ROLLOUTS,
        "advantage_fn",
    ),
    "priority": (
        adapt_priority,
        class_of(PriorityFunction, does=lambda _: (1.0, True)),
        CANDIDATE,
        "advantage_fn",
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_takes_arguments_of_all_our_names(kind: str) -> None:
    adapt, source, value, part = CLASSES[kind]
    own = adapt("own", source)
    known = AlgorithmPart(part=part, name="own", signature=signature_of(own), is_own=True)
    own(value, **known.arguments({}, dict(numbered())))
    with pytest.raises(UserError, match="has no argument"):
        known.arguments({}, {"unheard_of": 1})


def test_a_name_that_python_has_is_refused_with_a_sentence() -> None:
    for name in ("lambda", "my-own"):
        source = class_of(
            ExperienceOperator,
            method="process",
            does=lambda exps: (exps, {}),
            default_args=classmethod(lambda _, name=name: {name: 1}),
        )
        with pytest.raises(UserError, match=f"names '{name}', which cannot be an argument"):
            adapt_operator("own", source)


def test_estimators_and_strategies_may_name_any_argument() -> None:
    every = classmethod(lambda _: dict(numbered()))
    kl = class_of(KLFn, method="calculate_kl", does=lambda *rows: rows[0], default_args=every)
    assert torch.equal(adapted_kl("own", kl)(ROWS_BT, ROWS_BT), ROWS_BT)
    strategy = type("Own", (MixSampleStrategy,), {"default_args": every})
    assert adapt_strategy("own", strategy).defaults == numbered()


def test_functions_take_arguments_of_all_our_names() -> None:
    scored = group_reward(function(f"check(seen); return [1.0] * len({FIRST})"))
    rewards = scored(ROLLOUTS, **numbered()).rewards
    assert rewards is not None and rewards.tolist() == [1.0, 1.0]
    priority = function("check(seen); return 1.0")
    assert compute_priorities(priority, dict(numbered()), [CANDIDATE]) == [1.0]


def _batch() -> TokenData:
    return TokenData.of(BATCH)


OVER_OURS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "group advantage": (
        group_class("Ours", "grpo"),
        lambda made: [exp.advantage for exp in made.process(experiences_of(ROLLOUTS))[0]],
    ),
    "token advantage": (
        token_class("Ours", "reinforceplusplus"),
        lambda made: made(_batch())[0].batch["advantages"].tolist(),
    ),
    "operator": (
        operator_class("Ours", "reward_filter"),
        lambda made: [exp.reward for exp in made.process(experiences_of(ROLLOUTS))[0]],
    ),
    "policy loss": (
        loss_class("Ours", "ppo"),
        lambda made: made(ROWS_BT - 1, ROWS_BT, INPUTS.mask_BT, ROWS_BT + 1)[0].item(),
    ),
}


@pytest.mark.parametrize("kind", OVER_OURS)
def test_classes_over_ours_keep_further_arguments_apart(kind: str) -> None:
    source, result = OVER_OURS[kind]
    known = set() if kind == "operator" else set(source.default_args())
    crowded = {name: value for name, value in numbered().items() if name not in known}
    # An operator hands all that it is given to its function.
    made = source(**({} if kind == "operator" else crowded))
    set_attributes(made, crowded)
    assert result(made) == result(source())


def test_rewards_take_arguments_of_all_our_names() -> None:
    own = function("check(seen); return 1.0", head="=None")
    check_reward(own, dict(numbered()), "own")
    assert BoundReward(own, dict(numbered()), "own")(self=1) == {"own": 1.0}
    source = class_of(object, does=lambda **_: 1.0)
    made: Any = reward_class(NamedReward(source=source, args={}, name="own"), {})
    assert made(**numbered())(response="a") == {"own": 1.0}
