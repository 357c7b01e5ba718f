"""An experience has Trinity-RFT's fields, and services get ours."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from trinity.rft.common.experience import EID, CustomField, Experience, group_by
from trinity.types import FinishReason, Pair

torch = pytest.importorskip("torch", reason="these experiences hold its tensors")


def built(**changes: object) -> Experience:
    values: dict[str, object] = {
        "tokens": [1, 2, 3, 4, 5],
        "prompt_length": 3,
        "logprobs": [-0.5, -0.25],
        "reward": 1.0,
    }
    return Experience(**(values | changes))  # type: ignore[arg-type]


def test_tokens_logprobs_and_mask_are_tensors() -> None:
    made = built(tokens=torch.tensor([1, 2, 3, 4, 5]))
    assert made.tokens.dtype == torch.int32 and made.tokens[made.prompt_length :].tolist() == [4, 5]
    assert made.logprobs.tolist() == [-0.5, -0.25]
    assert made.action_mask.tolist() == [True, True]
    made.logprobs *= 2
    made.action_mask = torch.zeros_like(made.action_mask)
    assert made.sequence.rollout_logprobs.tolist() == [-1.0, -0.5]
    assert made.sequence.action_mask.tolist() == [False, False]


def test_the_place_is_mutable_and_has_their_ids() -> None:
    made = built(eid={"batch": 3, "task": "t"})
    place: object = made.eid
    assert isinstance(place, EID)
    place.run, place.step = 4, 5
    assert (place.tid, place.rid, place.sid) == ("3/t", "3/t/4", "3/t/5")
    assert str(place).startswith("3/t/4/5/")


def test_the_status_of_truncation_goes_both_ways() -> None:
    made = built(truncate_status="response_truncated")
    reasons = [made.finish_reason]
    made.truncate_status = None
    assert [*reasons, made.finish_reason] == [FinishReason.LENGTH, FinishReason.STOP]
    cut = built(truncate_status="prompt_truncated", logprobs=[0.0, 0.0])
    assert not cut.action_mask.any()


def test_the_texts_may_be_changed() -> None:
    made = built()
    made.response_text, made.prompt_text = "four five", "one"
    assert made.sequence.response_text == "four five" and made.sequence.prompt_text == "one"


def test_two_answers_to_one_prompt_are_a_pair() -> None:
    made = Experience(tokens=[1, 2], chosen=[3], rejected=[4, 5])
    assert isinstance(made.body, Pair) and made.experience_type == "dpo"
    assert made.body.rejected.tokens.tolist() == [1, 2, 4, 5]
    assert made.tokens.tolist() == [1, 2] and made.logprobs is None


def test_info_stays_the_dict_that_was_given() -> None:
    info: dict[str, object] = {}
    made = built(info=info)
    info["late"] = 1
    assert made.info == {"late": 1}
    assert built(metrics=None).metrics == {}


def test_copies_and_lists_work() -> None:
    made = built(custom_fields=[CustomField("a", "b", torch.float32)])
    again = copy.deepcopy(made)
    assert again is not made and again.tokens.tolist() == made.tokens.tolist()
    assert made in [again, made] and made != again
    assert replace(made, reward=2.0).prompt_length == 3


def test_experiences_are_grouped_by_their_place() -> None:
    one, two = built(eid=EID(batch=1, task=1)), built(eid=EID(batch=1, task=2, run=3))
    assert list(group_by([one, two], "task")) == ["1/1", "1/2"]
    with pytest.raises(ValueError, match="by task, run or step"):
        group_by([one], "day")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt_length": 5}, "needs a prompt and a response"),
        ({"tokens": None}, "built of `tokens`"),
        ({"token_reward": 1}, "no field token_reward"),
    ],
)
def test_what_cannot_be_built_is_told(changes: dict[str, object], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        built(**changes)


def test_a_field_that_is_not_there_is_an_attribute_error() -> None:
    assert built().messages is None
    assert not hasattr(built(), "nothing")


def test_a_teachers_logprobs_are_an_array() -> None:
    made = built(teacher_logprobs=torch.tensor([-1.0, -2.0], dtype=torch.bfloat16))
    assert np.array_equal(made.arrays["teacher_logprobs"].data, [-1.0, -2.0])
    assert made.teacher_logprobs.tolist() == [-1.0, -2.0]


def test_the_kind_says_whether_it_was_built_with_a_mask() -> None:
    kinds = [built().experience_type, built(action_mask=[True, False]).experience_type]
    assert kinds == ["single_turn", "multi_turn"]
