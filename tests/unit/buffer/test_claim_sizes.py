"""As many groups are claimed as their functions have time for."""

from services.buffer.domain.operators import FunctionChain, PipelineFunction
from services.buffer.pipeline.pipeline import MAX_CLAIMS, MAX_READ_CLAIMS, AdaptiveClaimSize
from trinity.algorithm.advantage.needs import Needs
from trinity.types import StageKey

KEY = StageKey(tenant="default", experiment_id="one", stage="rft")
CHAIN = FunctionChain(operators=(), advantage=PipelineFunction(name="grpo", arguments={}))
READING = FunctionChain(
    operators=(), advantage=PipelineFunction(name="grpo", arguments={}, needs=Needs(content=True))
)


def test_a_stage_that_could_not_try_all_gets_fewer_and_more_again_when_it_can() -> None:
    sizes = AdaptiveClaimSize()
    assert sizes.limit(KEY, CHAIN) == MAX_CLAIMS
    sizes.update(KEY, num_claimed=MAX_CLAIMS, num_tried=3)
    assert sizes.limit(KEY, CHAIN) == 3
    sizes.update(KEY, num_claimed=3, num_tried=3)
    assert sizes.limit(KEY, CHAIN) == 6
    sizes.update(KEY, num_claimed=2, num_tried=2)
    assert sizes.limit(KEY, CHAIN) == 6
    sizes.update(KEY, num_claimed=6, num_tried=0)
    assert sizes.limit(KEY, CHAIN) == 1


def test_samples_that_are_read_whole_stay_few() -> None:
    sizes = AdaptiveClaimSize()
    assert sizes.limit(KEY, READING) == MAX_READ_CLAIMS
    sizes.update(KEY, num_claimed=MAX_READ_CLAIMS, num_tried=MAX_READ_CLAIMS)
    assert sizes.limit(KEY, READING) == MAX_READ_CLAIMS


def test_stages_without_work_are_forgotten() -> None:
    sizes = AdaptiveClaimSize()
    sizes.update(KEY, num_claimed=5, num_tried=1)
    sizes.retain_stages([KEY])
    assert sizes.limit(KEY, CHAIN) == 1
    sizes.retain_stages([])
    assert sizes.limit(KEY, CHAIN) == MAX_CLAIMS
