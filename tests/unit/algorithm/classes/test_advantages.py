"""Advantages, operators and priorities that are classes of Trinity-RFT."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.algorithm.classes import plugin
from tests.unit.subtests import as_subtests
from trinity import types
from trinity.algorithm import token_advantage
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.errors import UserError
from trinity.operators import OPERATORS
from trinity.operators.kinds import USER_FUNCTION_KINDS
from trinity.operators.rollouts import Content, Rollouts
from trinity.rft.algorithm.advantage_fn import GroupAdvantage, adapting
from trinity.rft.algorithm.advantage_fn.adapting import adapt_advantage, group_class
from trinity.rft.buffer.experiences import experiences_of
from trinity.rft.buffer.operators.adapting import adapt_operator
from trinity.rft.buffer.storage import PRIORITY_FUNC, PriorityFunction
from trinity.types import UNREAD, Experience

SAMPLES = Samples.of_groups([0.0, 1.0, 2.0], [1.0, 1.0], [4.0, 0.0])


def test_a_group_advantage_is_computed_over_experiences() -> None:
    found = ADVANTAGES.get("classes_centred")(SAMPLES, scale=2.0)
    assert found.values.tolist() == [-2.0, 0.0, 2.0, 0.0, 0.0, 4.0, -4.0]
    assert found.left_out is not None
    assert found.left_out.tolist() == [False, False, False, True, True, False, False]
    assert found.metrics["group_advantages/reward_mean/max"].tolist() == [2.0] * 3


def test_a_class_of_theirs_counts_samples_unless_it_is_told_runs() -> None:
    whole = Samples.of_groups([1.0, 1.0, 1.0, 0.0])
    split = replace(whole, runs=np.array([0, 0, 0, 1]), steps=np.array([0, 1, 2, 0]))
    theirs: Any = group_class("Theirs", "opmd")
    for arguments, expected in (({}, 0.25), ({"unit": "run"}, 0.5)):
        rollouts = Rollouts.of(
            split, contents=[Content(prompt_text="", response_text="", info={}, metrics={})] * 4
        )
        kept, _ = theirs(**arguments).process(experiences_of(rollouts))
        assert float(kept[0].advantages[0]) == expected


def test_it_asks_for_a_whole_step_and_for_contents() -> None:
    needs = needs_of(ADVANTAGES.get("classes_centred"), {})
    assert needs.whole_step
    assert needs.content
    assert not needs_of(ADVANTAGES.get("grpo"), {}).content


def test_contents_travel_to_an_advantage_that_asks_for_them() -> None:
    kind = USER_FUNCTION_KINDS["advantage"]
    contents = [
        Content(prompt_text="a", response_text=str(i), info={"n": i}, metrics={}) for i in range(7)
    ]
    sent = kind.input_from_json(kind.input_to_json(Rollouts.of(SAMPLES, contents=contents)))
    assert isinstance(sent, Rollouts)
    assert [exp.info["n"] for exp in experiences_of(sent)] == list(range(7))
    plain = kind.input_from_json(kind.input_to_json(SAMPLES))
    assert not isinstance(plain, Rollouts)


class _Copying(plugin.Centred):
    """Puts copies of the first group in place of the dropped one."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        kept, metrics = super().process(exps)
        return [*kept, *map(copy.deepcopy, kept[: len(exps) - len(kept)])], metrics


class _Inventing(plugin.Centred):
    """Makes an experience that it was not given."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        kept, metrics = super().process(exps)
        return [*kept, SimpleNamespace(eid=kept[0].eid, advantages=1.0)], metrics


class _Uneven(plugin.Centred):
    """Gives tokens advantages of their own."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        for exp in exps:
            exp.advantages = np.arange(3.0)
            exp.action_mask = np.ones(3, dtype=bool)
        return exps, {}


class _Forgetful(plugin.Centred):
    """Sets no advantages."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return exps, {}


def adapted(source: type) -> Any:
    return adapt_advantage("mine", source)


class _Renaming(plugin.Centred):
    """Gives experiences ids of its own, which are users' to change."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        for exp in exps:
            exp.eid.run, exp.eid.suffix = 9, "same"
        experiences, metrics = super().process(exps)
        return experiences, metrics


def test_ids_may_be_changed() -> None:
    usual = ADVANTAGES.get("classes_centred")(SAMPLES)
    assert adapted(_Renaming)(SAMPLES).values.tolist() == usual.values.tolist()


def test_copies_stand_in_for_dropped_samples() -> None:
    found = adapted(_Copying)(SAMPLES)
    assert found.copies_of is not None
    assert found.copies_of[3] == 0
    assert found.copies_of[4] == 1
    assert found.copies_of[0] == -1


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (_Inventing, "an experience that it was not given"),
        (_Uneven, "differ between the tokens of a sample"),
        (_Forgetful, "without `advantages`"),
    ],
)
def test_what_cannot_be_a_groups_advantage_is_said(source: type, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        adapted(source)(SAMPLES)


def recorded(place: int) -> types.Experience:
    """What a buffer recorded of a sample: an answer whose second token the environment gave."""
    return types.Experience(
        body=types.Sequence(
            tokens=np.arange(6, dtype=np.int32) + place,
            prompt_length=3,
            action_mask=np.array([True, False, True]),
            rollout_logprobs=np.array([-0.5, 0.0, -1.5], dtype=np.float32) - place,
        ),
        finish_reason=types.FinishReason.LENGTH,
        arrays={"teacher_logprobs": types.Array(np.full(3, -2.0, dtype=np.float32))},
        trace_id="ab" * 16,
    )


CONTENT = Content(
    prompt_text="a", response_text="b", info={"n": 1}, metrics={}, finish_reason="length"
)
ROLLOUTS = Rollouts.of(
    SAMPLES,
    response_lengths=np.full(7, 3),
    contents=[CONTENT] * 7,
    experience=recorded,
)
OWN = {"eid", "reward", "info", "metrics", "prompt_text", "response_text"}
"""Fields that operators may change, with values of this explore step."""
FIELDS = sorted({name for name in dir(Experience) if name[0] != "_"} | {*UNREAD, "custom_fields"})


@as_subtests("name", FIELDS)
def test_every_field_of_an_experience_can_be_read(name: str) -> None:
    found = getattr(experiences_of(ROLLOUTS)[4], name)
    expected = getattr(recorded(4).copied(), name)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif not callable(expected) and name not in OWN and name not in ("body", "sequence", "arrays"):
        assert found == expected
    assert name not in ("tokens", "logprobs", "action_mask") or len(found) == len(expected) >= 3


def test_fields_are_loaded_when_they_are_first_read_and_only_then() -> None:
    asked: list[int] = []

    def record(place: int) -> types.Experience:
        asked.append(place)
        return recorded(place)

    experiences = experiences_of(replace(ROLLOUTS, experience=record))
    for exp in experiences:
        assert (exp.info["n"], exp.truncate_status) == (1, "response_truncated")
        exp.advantages = torch.full((3,), 2.0)
        assert exp.advantage == 2.0
    assert not asked
    assert copy.deepcopy(experiences[2]).logprobs.tolist() == [-2.5, -2.0, -3.5]
    assert asked == [2]
    chosen = ROLLOUTS.chosen(np.arange(7) > 3)
    assert chosen.experience(0).sequence.tokens[0] == 4


def test_a_mask_is_the_recorded_one_until_it_is_replaced_as_a_whole() -> None:
    kept, masked, cut = experiences_of(ROLLOUTS)[:3]
    kept.advantages = 2.0 * kept.action_mask
    assert (kept.is_masked, kept.advantage) == (False, 2.0)
    masked.action_mask = masked.action_mask & False
    assert masked.is_masked
    cut.action_mask[0] = False
    with pytest.raises(UserError, match="was false for some of its tokens"):
        _ = cut.is_masked


def test_samples_that_no_buffer_recorded_have_no_tokens() -> None:
    experience = experiences_of(SAMPLES)[0]
    with pytest.raises(UserError, match="not one that a buffer recorded"):
        _ = experience.tokens
    with pytest.raises(AttributeError, match="an experience has no `tokenz`"):
        _ = experience.tokenz


def test_a_field_that_nothing_would_read_is_refused_and_others_may_be_added() -> None:
    experience = experiences_of(SAMPLES)[0]
    for name in ("tokens", "logprobs", "token_level_reward"):
        with pytest.raises(UserError, match=f"`{name}` of an experience was set"):
            setattr(experience, name, [1])
    assert experience.token_level_reward is None
    experience.score_of_mine = 2.0
    assert copy.deepcopy(experience).score_of_mine == 2.0


@pytest.mark.parametrize("masked", [0, 1, 2, 3])
def test_all_tokens_of_a_sample_are_masked_or_none(masked: int) -> None:
    experience = experiences_of(SAMPLES)[0]
    experience.action_mask = torch.arange(3) >= masked
    experience.advantages = torch.full((3,), 2.0)
    if masked in (0, 3):
        assert (experience.is_masked, experience.advantage) == (masked == 3, 0.0 if masked else 2.0)
        return
    for name in ("is_masked", "advantage"):
        with pytest.raises(UserError, match="was false for some of its tokens"):
            getattr(experience, name)


class Remembers(plugin.Shaped):
    """Notes that it was closed; with `scale` it sets what only an advantage may set."""

    def __init__(self, path: str, scale: float = 0.0) -> None:
        super().__init__()
        self.path, self.scale = path, scale

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        for exp in exps if self.scale else ():
            exp.advantages = self.scale * exp.action_mask
        return exps, {}

    def close(self) -> None:
        if Path(self.path).parent.is_dir():
            Path(self.path).write_text("closed")


def test_an_operator_is_closed_when_its_process_ends(tmp_path: Path) -> None:
    code = (
        "from tests.unit.algorithm.classes.test_advantages import Remembers, adapt_operator, "
        "rollouts\n"
        f"adapt_operator('x', Remembers)(rollouts(), path={str(tmp_path / 'note')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "note").read_text() == "closed"


def test_an_operator_that_sets_advantages_is_told_where_they_belong(tmp_path: Path) -> None:
    operator: Any = adapt_operator("x", Remembers)
    with pytest.raises(UserError, match=r"name it in `algorithm\.advantage_fn`"):
        operator(rollouts(), path=str(tmp_path / "note"), scale=1.0)


def token_batch() -> TokenBatch:
    rewards_BT = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    return TokenBatch(
        rewards_BT=rewards_BT,
        mask_BT=np.array([[True, True, False], [True, False, False]]),
        lengths_B=np.array([2, 1]),
        groups_B=np.array([4, 7]),
        logprobs_BT=np.zeros((2, 3)),
        rollout_logprobs_BT=np.zeros((2, 3)),
    )


def test_an_advantage_of_tokens_writes_into_a_batch() -> None:
    found = TOKEN_ADVANTAGES.get("classes_tokens")(token_batch())
    assert found.advantages_BT.tolist() == [[3.0, 3.0, 0.0], [1.5, 0.0, 0.0]]
    assert found.metrics == {"num_tasks": 2.0}
    assert found.returns_BT is None


def test_a_class_that_reads_entropies_has_the_trainer_compute_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_advantage, "NEEDS_OF_CLASSES", {})
    monkeypatch.setattr(adapting, "NEEDS_OF_CLASSES", token_advantage.NEEDS_OF_CLASSES)

    class Spread(plugin.Tokens):
        """Reads the policy's entropies, in a method beside the call."""

        def spread(self, exps: Any) -> Any:
            return exps.batch["entropys"].mean()

    adapt_advantage("Spread", Spread)
    adapt_advantage("Tokens", plugin.Tokens)
    assert token_advantage.needs_of("Spread") == token_advantage.needs_of("mine.Spread")
    assert token_advantage.needs_of("mine.Spread") == {"entropies"}
    assert token_advantage.needs_of("mine.Tokens") == frozenset()


def test_a_column_that_the_batch_lacks_is_named_with_those_it_has() -> None:
    class Valued(plugin.Tokens):
        """Wants a critic."""

        def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return exps.batch["values"], {}

    with pytest.raises(
        UserError, match=r"has no `values` for this algorithm: it has response_mask"
    ):
        adapted(Valued)(token_batch())


CLASSES = [
    ("GRPOGroupedAdvantage", "grpo", {"std_threshold": 0.0}),
    ("OPMDGroupAdvantage", "opmd", {"opmd_baseline": "logavgexp", "tau": 0.5}),
    ("REINFORCEGroupAdvantage", "reinforce", {}),
    ("RECGroupedAdvantage", "rec", {}),
    ("StepWiseGRPOAdvantageFn", "step_wise_grpo", {}),
    ("ASYMREGroupAdvantage", "asymre", {}),
]


@pytest.mark.parametrize(("name", "function", "arguments"), CLASSES)
def test_a_class_of_trinity_rft_computes_what_our_function_does(
    name: str, function: str, arguments: dict[str, Any]
) -> None:
    from trinity.algorithm import advantage_fn

    expected = ADVANTAGES.built_in(function)(SAMPLES, **arguments)
    left_out = np.zeros(7, bool) if expected.left_out is None else expected.left_out
    source = getattr(advantage_fn, name)
    kept, _ = source(**{**source.default_args(), **arguments})(experiences_of(SAMPLES))
    found = {exp.eid.suffix: exp.advantage for exp in kept}
    wanted = {str(i): v for i, v in enumerate(expected.values) if not left_out[i]}
    assert found == pytest.approx(wanted, rel=1e-6)


def test_a_subclass_of_one_has_its_own_way_with_a_group() -> None:
    from trinity.rft.algorithm.advantage_fn import GRPOGroupedAdvantage

    class Doubled(GRPOGroupedAdvantage):  # type: ignore[misc]
        """Doubles what the base computes for a group."""

        def calculate_group_advantage(self, group_id: str, exps: list[Any]) -> Any:
            kept, metrics = super().calculate_group_advantage(group_id, exps)
            for exp in kept:
                exp.advantages = exp.advantages * 2
            return kept, metrics

    usual = ADVANTAGES.built_in("grpo")(SAMPLES)
    assert adapted(Doubled)(SAMPLES).values == pytest.approx(2 * usual.values, rel=1e-6)
    assert issubclass(Doubled, GroupAdvantage)


def rollouts() -> Rollouts:
    contents = [
        Content(prompt_text="", response_text="", info={"bonus": i / 10}, metrics={})
        for i in range(7)
    ]
    truncated = np.array([False, True, True, False, False, False, False])
    return Rollouts.of(
        SAMPLES, is_truncated=truncated, contents=contents, response_lengths=np.full(7, 4)
    )


def test_an_operator_drops_changes_and_masks() -> None:
    changes = OPERATORS.get("classes_shaped")(rollouts(), threshold=1.0)
    assert changes.left_out is not None and changes.rewards is not None
    assert changes.masked is not None
    assert changes.left_out.tolist() == [True, False, False, False, False, False, True]
    assert changes.rewards.tolist() == pytest.approx([0.0, 1.1, 2.2, 1.3, 1.4, 4.5, 0.0])
    assert changes.masked.tolist() == [False, True, True, False, False, False, False]
    assert changes.metrics["filtered_count"].tolist() == [2.0, 0.0, 0.0]
    assert "SELECTOR_METRIC" not in changes.metrics
    assert np.nan_to_num(changes.numbers["seen"]).tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_an_asynchronous_operator_is_prepared_once() -> None:
    operator = OPERATORS.get("classes_async")
    for _ in range(2):
        changes = operator(rollouts())
        assert changes.rewards is not None
        assert changes.rewards.tolist() == (2 * SAMPLES.rewards).tolist()


def test_an_operator_that_asks_models_is_refused() -> None:
    class Judging(plugin.Asynchronous):
        """Asks a model."""

        async def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
            assert self.auxiliary_models["judge"]
            return exps, {}

    with pytest.raises(UserError, match="Judging of `judging` asks `auxiliary_models`"):
        adapt_operator("judging", Judging)


def test_an_operator_of_trinity_rft_changes_experiences() -> None:
    from trinity.rft.buffer.operators import RewardSTDFilter

    kept, metrics = RewardSTDFilter(threshold=0.0).process(experiences_of(SAMPLES))
    assert [exp.eid.suffix for exp in kept] == ["0", "1", "2", "5", "6"]
    assert metrics["filtered_count"] == 2


@PRIORITY_FUNC.register_module("classes_fresh")
class Fresh(PriorityFunction):
    """The newest first, each used at most twice."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def __call__(self, item: list[Any]) -> tuple[float, bool]:
        info = item[0].info
        return info["model_version"] - self.decay * info["use_count"], info["use_count"] < 2

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {"decay": 0.5}


def test_a_priority_is_asked_about_a_sample_that_waits() -> None:
    def candidate(use_count: int) -> Candidate:
        return Candidate(
            model_version=7, use_count=use_count, reward=1.0, advantage=0.0, normal=0.0
        )

    function = PRIORITIES.get("classes_fresh")
    assert function(candidate(1)) == 6.5
    assert function(candidate(1), decay=2.0) == 5.0
    assert function(candidate(2)) is None
