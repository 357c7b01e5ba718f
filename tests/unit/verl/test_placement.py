"""GPUs of a script's machines are shared out so that each rank has work, in whole machines."""

import itertools
import math
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import converted, flat, from_keys, missing, value
from trinity.config.check import check_file
from trinity.config.plan.placement import (
    ClusterGpus,
    EngineGroup,
    GpuDemand,
    assign_gpus,
    cluster_gpus_of,
    gpu_demand_of,
)
from trinity.verl.convert import Converted

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = "explorer.rollout_model"
ULYSSES = "trainer.ulysses_sequence_parallel_size"
TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
JUDGE = (
    "reward_model.enable=True",
    "reward_model.model.path=/models/judge",
    "reward_model.rollout.tensor_model_parallel_size=2",
)


def _number(found: Converted, key: str, default: int = 1) -> int:
    number = flat(found.values).get(key, default)
    assert isinstance(number, int)
    return number


def _demand(found: Converted) -> tuple[ClusterGpus, GpuDemand]:
    """What the plan makes of the written keys, ranks by default included."""
    cluster = ClusterGpus(
        nodes=_number(found, "cluster.node_num"),
        gpus_per_node=_number(found, "cluster.gpu_per_node"),
    )
    engines = EngineGroup(
        name="rollout engine",
        num=_number(found, f"{ENGINE}.engine_num"),
        tensor_parallel=_number(found, f"{ENGINE}.tensor_parallel_size"),
        data_parallel=_number(found, f"{ENGINE}.data_parallel_size"),
        pipeline_parallel=_number(found, f"{ENGINE}.pipeline_parallel_size"),
    )
    ranks = _number(found, "trainer.rank_num", cluster.total - engines.gpus)
    demand = GpuDemand(
        mode="both", engines=(engines,), ranks=ranks, sequence_parallel=_number(found, ULYSSES)
    )
    return cluster, demand


def _lines(found: Converted, words: str) -> list[str]:
    return [line for line in found.report if words in line]


@pytest.mark.parametrize(
    ("nodes", "ranks", "explorers"), [(2, 8, 1), (3, 16, 1), (4, 24, 1), (8, 48, 2), (16, 96, 4)]
)
def test_a_quarter_of_the_machines_rolls_out_and_whole_ones_train(
    nodes: int, ranks: int, explorers: int
) -> None:
    found = from_keys(f"trainer.nnodes={nodes}", f"{TENSOR}=2")
    _, demand = _demand(found)
    assert demand.ranks == ranks
    assert value(found, f"{ENGINE}.engine_num") == 4
    assert bool(_lines(found, f"--explorers {explorers}")) is (explorers > 1)
    assert not _lines(found, "idle")


def test_machines_that_verl_keeps_for_rollout_are_of_explorers() -> None:
    found = from_keys("trainer.nnodes=3", f"{ROLLOUT}.nnodes=2", f"{TENSOR}=2")
    assert value(found, "cluster.node_num") == 5
    assert value(found, "trainer.rank_num") == 24
    assert _lines(found, "--explorers 2")


@as_subtests(
    "given",
    [
        [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={gpus}", f"{TENSOR}={tensor}", *more]
        for nodes, gpus, tensor in itertools.product((1, 2, 5), (4, 8), (1, 3, 4))
        for more in (
            [f"{ACTOR}.ulysses_sequence_parallel_size=8"],
            [f"{ACTOR}.fsdp_config.fsdp_size=16"],
            [f"{ACTOR}.ppo_mini_batch_size=4", f"{ROLLOUT}.n=2"],
            [f"{ROLLOUT}.data_parallel_size=8", f"{ROLLOUT}.expert_parallel_size=8"],
        )
    ],
)
def test_what_is_shared_out_fits_the_machines_and_divides(given: list[str]) -> None:
    found = from_keys(*given)
    cluster, demand = _demand(found)
    assert assign_gpus(cluster, demand)
    assert demand.ranks % demand.sequence_parallel == 0
    rows = _number(found, "buffer.train_batch_size")
    assert rows * demand.sequence_parallel >= demand.ranks
    group = _number(found, "trainer.fsdp_size", -1)
    assert group < 1 or demand.ranks <= group or demand.ranks % group == 0


def test_ranks_that_a_step_cannot_feed_are_left_out() -> None:
    """Of 16 machines, as one script of 4 tasks with 4 runs each has them."""
    small = [f"{ACTOR}.ppo_mini_batch_size=4", f"{ROLLOUT}.n=4", f"{TENSOR}=4"]
    found = from_keys("trainer.nnodes=16", *small)
    assert value(found, "trainer.rank_num") == 16
    assert _lines(found, "--explorers 14")


def test_machines_beside_ranks_and_explorers_of_their_own_are_named() -> None:
    own = [f"{ROLLOUT}.nnodes=1", f"{ACTOR}.ppo_mini_batch_size=8", f"{ROLLOUT}.n=1"]
    (line,) = _lines(from_keys("trainer.nnodes=3", *own), "idle")
    assert "2 of 4 machines are idle" in line
    assert "`cluster.node_num: 2`" in line


def test_fewer_share_a_sequence_where_no_number_of_ranks_divides() -> None:
    found = from_keys(
        "trainer.n_gpus_per_node=8",
        f"{TENSOR}=8",
        f"{ACTOR}.ulysses_sequence_parallel_size=8",
        f"{ACTOR}.ppo_max_token_len_per_gpu=1000",
    )
    assert value(found, ULYSSES) == 4
    assert value(found, "trainer.max_token_len_per_gpu") == 2000, "the micro-batches stay the same"
    (line,) = _lines(found, "divide no number of ranks")
    assert "2 times the tokens" in line
    assert missing(found) == []


def test_groups_that_share_sequences_may_be_larger_than_a_machine() -> None:
    found = from_keys("trainer.nnodes=4", f"{ACTOR}.ulysses_sequence_parallel_size=16")
    assert value(found, "trainer.rank_num") == 16
    assert value(found, ULYSSES) == 16


def test_ranks_that_share_sequences_have_no_padding() -> None:
    padded = f"{ACTOR}.megatron.use_remove_padding=False"
    found = from_keys("model_engine=megatron", padded, f"{ACTOR}.megatron.context_parallel_size=2")
    assert value(found, "trainer.use_remove_padding") is True
    assert missing(found) == []
    assert value(from_keys("model_engine=megatron", padded), "trainer.use_remove_padding") is False


def test_copies_in_an_engine_stay_on_its_machine() -> None:
    """vLLM's copies of one engine do not span machines."""
    parallel = [f"{TENSOR}=4", f"{ROLLOUT}.data_parallel_size=32"]
    found = from_keys("trainer.nnodes=16", *parallel, f"{ROLLOUT}.expert_parallel_size=128")
    assert value(found, f"{ENGINE}.tensor_parallel_size") == 4
    assert value(found, f"{ENGINE}.data_parallel_size") == 2
    assert value(found, f"{ENGINE}.enable_expert_parallel") is True
    assert _lines(found, "data_parallel_size=32")


@pytest.mark.parametrize(
    ("nodes", "sizes", "ranks"),
    [(3, (16, 1), 8), (4, (8, 2), 16), (5, (24, 1), 16), (4, (8, 3), 8)],
)
def test_an_engine_of_whole_machines_keeps_its_size_and_is_the_only_one(
    nodes: int, sizes: tuple[int, int], ranks: int
) -> None:
    given = [f"{TENSOR}={sizes[0]}", f"{ROLLOUT}.pipeline_model_parallel_size={sizes[1]}"]
    found = from_keys(f"trainer.nnodes={nodes}", *given)
    cluster, demand = _demand(found)
    (engines,) = demand.engines
    assert (engines.num, engines.tensor_parallel, engines.pipeline_parallel) == (1, *sizes)
    assert demand.ranks == ranks and assign_gpus(cluster, demand)
    (line,) = _lines(found, "larger than a machine of 8")
    assert f"it lies over {math.prod(sizes) // 8} machines" in line
    assert "`trinity deploy render`" in line and not _lines(found, "--explorers")


def test_an_engine_over_machines_is_of_one_explorer_and_training_has_the_rest() -> None:
    found = from_keys("trainer.nnodes=16", f"{TENSOR}=16")
    assert value(found, f"{ENGINE}.engine_num") == 1
    _, demand = _demand(found)
    assert demand.ranks == 112
    assert not _lines(found, "--explorers")
    (line,) = _lines(found, "larger than a machine of 8")
    assert "16 of 128 GPUs roll out" in line


@pytest.mark.parametrize(
    ("given", "choices", "tensor", "why"),
    [
        ([f"{TENSOR}=12"], {}, 6, "fills no number of whole ones"),
        ([f"{TENSOR}=16"], {"engine_num": 2}, 8, "the only one of its run"),
        (
            [f"{TENSOR}=16", *JUDGE],
            {},
            4,
            "leaves no GPU of a machine's 8 for the engines of other",
        ),
    ],
)
def test_an_engine_that_cannot_lie_over_machines_is_made_to_fit_one(
    given: list[str], choices: dict[str, int], tensor: int, why: str
) -> None:
    found = from_keys("trainer.nnodes=4", *given, **choices)
    assert value(found, f"{ENGINE}.tensor_parallel_size") == tensor
    (line,) = _lines(found, "tensor_model_parallel_size=")
    assert why in line
    assert assign_gpus(*_demand(found))


def test_a_whole_file_with_an_engine_over_machines_is_planned(tmp_path: Path) -> None:
    found = from_keys("trainer.nnodes=4", f"{TENSOR}=16", "data.train_files=/d/train.parquet")
    file = tmp_path / "x.yaml"
    file.write_text(found.yaml)
    report = check_file(file)
    assert report.plan is not None, report.errors
    plan = report.plan.stages[0]
    assert assign_gpus(cluster_gpus_of(plan), gpu_demand_of(plan))


def test_copies_give_way_to_training_before_the_shards_of_a_model() -> None:
    found = from_keys("trainer.n_gpus_per_node=8", f"{TENSOR}=2", f"{ROLLOUT}.data_parallel_size=4")
    assert value(found, f"{ENGINE}.tensor_parallel_size") == 2
    assert value(found, f"{ENGINE}.data_parallel_size") == 2


@pytest.mark.parametrize("section", ["", "megatron.", "veomni."])
@pytest.mark.parametrize(("mode", "says"), [("R2", 1), ("R3", 0)])
def test_router_replay_acts_wherever_it_is_written(section: str, mode: str, says: int) -> None:
    found = from_keys(f"{ACTOR}.{section}router_replay.mode={mode}")
    assert value(found, "algorithm.enable_router_replay") is True
    assert missing(found) == []
    assert len(_lines(found, "which is veRL's `R3`")) == says
    off = from_keys(f"{ACTOR}.{section}router_replay.mode=disabled")
    assert "algorithm.enable_router_replay" not in flat(off.values)


def test_supervised_ranks_fill_all_machines_that_a_step_feeds(tmp_path: Path) -> None:
    start = "torchrun --nnodes=4 --nproc_per_node=8 -m verl.trainer.sft_trainer"
    files = "data.train_files=/d/train.parquet"
    found = converted(f"{start} {files}", tmp_path)
    assert "trainer.rank_num" not in flat(found.values), "all 32 by default"
    few = converted(f"{start} {files} data.train_batch_size=16", tmp_path)
    assert value(few, "trainer.rank_num") == 16
    assert _lines(few, "16 of 32 GPUs are idle")


def test_one_gpu_is_used_by_turns_as_verl_does() -> None:
    found = from_keys("trainer.n_gpus_per_node=1", "actor_rollout_ref.hybrid_engine=True")
    assert value(found, "mode") == "colocate"
    assert value(found, f"{ENGINE}.engine_num") == 1
    assert value(found, f"{ENGINE}.tensor_parallel_size") == 1, "veRL's default is 2"
    assert missing(found) == []
    assert not _lines(found, "training needs one at least")


@pytest.mark.parametrize(
    "given",
    [
        ["trainer.n_gpus_per_node=2", f"{TENSOR}=1"],
        ["trainer.n_gpus_per_node=1", "trainer.v1.trainer_mode=colocate_async"],
        ["trainer.n_gpus_per_node=1", "async_training.staleness_threshold=0.5"],
        ["trainer.n_gpus_per_node=1", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1"],
    ],
    ids=str,
)
def test_there_are_no_turns_where_rollout_goes_on_or_has_gpus(given: list[str]) -> None:
    assert "mode" not in flat(from_keys(*given).values)
