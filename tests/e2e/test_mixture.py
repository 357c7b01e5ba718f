"""A mixture of experts trains through the services with the experts that its engine tells of.

vLLM tells none without a GPU, so the engine is a stand-in; buffer, synchronizer and trainer, with
its real model, are not.
"""

from pathlib import Path

import pytest

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import model_free_stack
from tests.unit.trainer.builders import save_tiny_mixture
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [pytest.mark.timeout(1800), pytest.mark.thorough]
NUM_STEPS = 4
MODULES = {"explorer": "tests.support.model_free.mixture_explorer"}
FILE = "model.safetensors"
EXPERT = "model.layers.2.mlp.experts.4.up_proj.weight"


async def trained(root: Path, mixture: Path, name: str, *, replays: bool) -> Path:
    """The last version of a run, all of whose tokens came with experts if it replays them."""
    plan = experiment_plan(
        root,
        name=name,
        model={"model_path": str(mixture), "max_prompt_tokens": 64, "max_response_tokens": 8},
        algorithm={
            "algorithm_type": "grpo",
            "enable_router_replay": replays,
            "optimizer": {"lr": 1e-3},
        },
        buffer={"batch_size": 4, "total_steps": NUM_STEPS},
    )
    async with model_free_stack(plan.job_path, modules=MODULES) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    final = ended.stages[0].final_version
    assert (final.version, final.incarnation) == (NUM_STEPS, 1)
    return Path(final.path)


async def test_a_mixture_trains_through_the_services_with_recorded_experts(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    mixture = save_tiny_mixture(tmp_path / "mixture", vocabulary=256)
    replayed, again, plain = [
        load_file(await trained(tmp_path / name, mixture, name, replays=name != "plain") / FILE)
        for name in ("replayed", "again", "plain")
    ]
    before = load_file(mixture / FILE)
    assert bool((replayed[EXPERT] != before[EXPERT]).any()), "it learned"
    assert all(bool((again[name] == tensor).all()) for name, tensor in replayed.items())
    differing = [name for name, tensor in plain.items() if (replayed[name] != tensor).any()]
    assert EXPERT in differing, "the control: without the record other experts learn"
