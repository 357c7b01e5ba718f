"""Memory, processors and shared memory of services, against sums made by hand."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config
from tests.unit.subtests import as_subtests
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge
from trinity.config.sizing.disk import disk_sizes
from trinity.config.sizing.memory import GIB
from trinity.config.sizing.services import ServiceSizes, service_sizes

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
P = 70_553_706_496
"""Its parameters, as its makers count them."""
ON_SIXTEEN: dict[str, object] = {
    "model": {"model_path": "meta/seventy", "max_model_len": 4096},
    "cluster": {"node_num": 2, "gpu_per_node": 8},
    "explorer": {"rollout_model": {"engine_num": 2, "tensor_parallel_size": 4}},
    "trainer": {"rank_num": 8},
    "buffer": {"explorer_input": {"default_workflow_type": "math_workflow"}},
}
Case = Mapping[str, object]


def seventy(tmp_path: Path) -> Path:
    """A `config.json` written by hand: there are no weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return tmp_path / "config.json"


def plan(*changes: Case) -> ExperimentPlan:
    given: dict[str, object] = dict(ON_SIXTEEN)
    for change in changes:
        given = dict(deep_merge(given, change))
    return plan_experiment(config(GRPO, **given))


def sizes(tmp_path: Path, service: str, *changes: Case) -> ServiceSizes:
    return service_sizes(plan(*changes), seventy(tmp_path))[service]


def of(terms: object, name: str) -> float:
    assert isinstance(terms, tuple)
    return float(sum(term.bytes for term in terms if term.name == name) / P)


@as_subtests(
    ("what", "trainer", "wanted"),
    [
        ("nothing is moved but the reference, of which verl says where it is", {}, 0),
        ("the optimizer", {"optimizer_offload": True}, 8),
        ("weights and gradients", {"param_offload": True}, 8),
        ("all three", {"offload_policy": True}, 16),
    ],
)
def test_what_is_offloaded_is_in_the_memory_of_the_trainers_host(
    tmp_path: Path, what: str, trainer: Case, wanted: int
) -> None:
    """Bytes a parameter of all ranks together, and a third for pages that are pinned."""
    found = sizes(tmp_path, "trainer", {"trainer": trainer}).working
    moved = sum(term.bytes for term in found if term.name.startswith("actor")) / P
    assert moved == pytest.approx(wanted * 4 / 3), what
    assert of(found, "reference weights") == pytest.approx(2 * 4 / 3)


def test_a_model_is_read_whole_by_one_rank_of_each_group(tmp_path: Path) -> None:
    assert of(sizes(tmp_path, "trainer").loading, "the model") == pytest.approx(4)
    groups = sizes(tmp_path, "trainer", {"trainer": {"fsdp_size": 4}})
    assert of(groups.loading, "the model") == pytest.approx(2 * 4)


def test_weights_sent_from_memory_are_there_twice(tmp_path: Path) -> None:
    given = {"synchronizer": {"sync_method": "nccl"}}
    assert of(sizes(tmp_path, "trainer", given).working, "weights to send") == pytest.approx(2 * 2)
    files = {"synchronizer": {"sync_method": "checkpoint"}}
    assert of(sizes(tmp_path, "trainer", files).working, "weights to send") == 0


def test_memory_is_more_than_its_largest_phase_and_holds_what_is_in_shm(tmp_path: Path) -> None:
    found = sizes(tmp_path, "trainer", {"trainer": {"optimizer_offload": True}})
    phase = max(sum(t.bytes for t in terms) for terms in (found.loading, found.working))
    least = sum(t.bytes for t in found.memory) + phase + found.shm_bytes
    assert least < found.memory_bytes < 1.4 * least
    assert found.memory_bytes % GIB == 0
    assert found.memory_bytes > 8 * P, "the optimizer's state alone"


def test_queues_of_vllm_are_in_shm_where_an_engine_has_several_workers(tmp_path: Path) -> None:
    """10 chunks of 16 MiB to all, 10 of 24 MiB back from each, as in vLLM's own source."""
    found = sizes(tmp_path, "explorer")
    queues = sum(term.bytes for term in found.shm if term.name == "vLLM's queues")
    assert queues == (2 * 160 + 8 * 240) * 2**20
    alone = {"explorer": {"rollout_model": {"tensor_parallel_size": 1, "engine_num": 1}}}
    assert [term.name for term in sizes(tmp_path, "explorer", alone).shm] == ["newest version"]


def test_a_gang_takes_of_each_host_what_its_ranks_there_take(tmp_path: Path) -> None:
    two = {"cluster": {"node_num": 3}, "trainer": {"rank_num": 16, "optimizer_offload": True}}
    batch = {"buffer": {"batch_size": 8}}
    found = sizes(tmp_path, "trainer", two, batch)
    assert of(found.working, "actor optimizer") == pytest.approx(8 * 4 / 3 / 2)


def test_a_model_that_is_not_known_has_no_sizes_and_the_others_have(tmp_path: Path) -> None:
    assert service_sizes(plan()).keys() == {"synchronizer", "buffer"}
    assert service_sizes(plan(), seventy(tmp_path)).keys() >= {"trainer", "explorer"}


def test_the_disk_holds_checkpoints_and_versions_that_are_kept(tmp_path: Path) -> None:
    kept = {"trainer": {"max_checkpoints_to_keep": 2, "save_interval": 2}}
    run = disk_sizes(plan(kept), seventy(tmp_path))["run"]
    assert [term.bytes / P for term in run] == [3 * 2, 3 * 12]
    every = disk_sizes(plan({"trainer": {"save_interval": 2}}), seventy(tmp_path))["run"]
    assert every[1].bytes / P == 7 * 12, "ten steps make five, the last one, and one is written"
    (cached,) = disk_sizes(plan(), seventy(tmp_path))["cache"]
    assert (cached.name, cached.bytes) == ("meta/seventy", 2 * P)
