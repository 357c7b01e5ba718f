"""Engines and ranks get their GPUs, or a sentence why not."""

import pytest

from tests.unit.subtests import as_subtests
from trinity.config.plan.placement import (
    ClusterGpus,
    EngineGroup,
    GpuDemand,
    assign_gpus,
    num_hosts,
)
from trinity.errors import UserError


def engines(
    num: int = 1,
    *,
    name: str = "rollout engine",
    tensor_parallel: int = 1,
    data_parallel: int = 1,
) -> EngineGroup:
    return EngineGroup(
        name=name, num=num, tensor_parallel=tensor_parallel, data_parallel=data_parallel
    )


def demand(*wanted: EngineGroup, ranks: int = 1, mode: str = "both") -> GpuDemand:
    return GpuDemand(mode=mode, engines=wanted or (engines(),), ranks=ranks)


def places(nodes: int, gpus: int, wanted: GpuDemand) -> dict[str, tuple[str, ...]]:
    machines = ClusterGpus(nodes=nodes, gpus_per_node=gpus)
    return {seat.name: seat.gpus for seat in assign_gpus(machines, wanted)}


def test_engines_take_the_first_gpus_and_ranks_the_rest() -> None:
    judge = engines(name="judge")
    found = places(1, 6, demand(engines(2, tensor_parallel=2), judge, ranks=1))
    assert found == {
        "rollout engine 0": ("0:0", "0:1"),
        "rollout engine 1": ("0:2", "0:3"),
        "judge 0": ("0:4",),
        "rank 0": ("0:5",),
    }


def test_an_engine_may_span_nodes() -> None:
    found = places(3, 2, demand(engines(tensor_parallel=4), ranks=2))
    assert found["rollout engine 0"] == ("0:0", "0:1", "1:0", "1:1")
    assert found["rank 1"] == ("2:1",)


def test_without_gpus_all_are_on_the_processor() -> None:
    assert places(1, 0, demand(ranks=2)) == {"rollout engine 0": (), "rank 0": (), "rank 1": ()}


def test_a_model_elsewhere_takes_no_gpu() -> None:
    found = places(
        1, 1, demand(EngineGroup(name="api", num=1, kind="external"), mode="bench", ranks=0)
    )
    assert found == {"api 0": ()}


def test_one_gpu_is_shared_in_colocate() -> None:
    found = places(1, 1, demand(mode="colocate"))
    assert found == {"rollout engine 0": ("0:0",), "rank 0": ("0:0",)}


@as_subtests(
    ("nodes", "gpus", "wanted", "message"),
    [
        (1, 4, demand(engines(tensor_parallel=6)), "6 GPUs, no multiple of a node's 4"),
        (
            4,
            2,
            demand(engines(tensor_parallel=2, data_parallel=2)),
            "spans 2 nodes, where vLLM takes no `data_parallel_size`",
        ),
        (
            6,
            2,
            demand(engines(2, tensor_parallel=4)),
            "spans 2 nodes, and an explorer on several has one: set `engine_num` to 1",
        ),
        (
            6,
            2,
            demand(engines(tensor_parallel=4), engines(name="judge")),
            "let a server elsewhere answer for auxiliary models",
        ),
        (1, 2, demand(engines(3), mode="bench", ranks=0), "want 3 GPUs .* there are 2"),
        (1, 2, demand(engines(2)), "leaves none to train on"),
        (2, 4, demand(engines(2), ranks=6), "6 ranks are more than one machine has GPUs"),
        (3, 2, demand(engines(3), ranks=4), "`trainer.rank_num: 2` or less"),
        (4, 8, demand(engines(2), ranks=30), "engines leave 3: give `trainer.rank_num: 24` or"),
        (2, 2, demand(engines(), ranks=3, mode="bench"), "3 ranks are more than one machine has"),
        (1, 2, demand(mode="colocate"), "is one GPU for one engine"),
        (1, 1, demand(engines(), engines(name="judge"), mode="colocate"), "no auxiliary models"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    nodes: int, gpus: int, wanted: GpuDemand, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        places(nodes, gpus, wanted)


def test_a_gang_may_have_whole_nodes_behind_those_of_the_engines() -> None:
    found = places(4, 8, demand(engines(2), ranks=24))
    assert found["rollout engine 1"] == ("0:1",)
    assert (found["rank 0"], found["rank 23"]) == (("1:0",), ("3:7",))
    assert [num_hosts(ranks, 8) for ranks in (0, 1, 8, 24)] == [1, 1, 1, 3]


def test_training_may_have_a_whole_node() -> None:
    found = places(2, 2, demand(engines(2), ranks=2))
    assert (found["rank 0"], found["rank 1"]) == (("1:0",), ("1:1",))
