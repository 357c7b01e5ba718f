"""The FAQ's function reads checkpoints here and of verl, whole, by step or by folder."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from trinity.errors import UserError
from trinity.rft.common.models.utils import load_fsdp_state_dict_from_verl_checkpoint
from trinity.weights.shards import write_shards

WHOLE = {
    "model.embed.weight": torch.arange(20.0).reshape(5, 4),
    "model.norm.weight": torch.arange(4.0) + 100,
    "model.one.weight": torch.arange(4.0).reshape(1, 4) + 7,
}


def write(folder: Path, ranks: int, names: dict[str, torch.Tensor] = WHOLE) -> Path:
    """As verl writes it: each rank its part, some replicated."""
    folder.mkdir(parents=True)
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        mesh = DeviceMesh("cpu", list(range(ranks)))
        state = {name: _part(tensor, name, rank, ranks, mesh) for name, tensor in names.items()}
        torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
        dist.destroy_process_group()
    return folder


def _part(tensor: torch.Tensor, name: str, rank: int, ranks: int, mesh: DeviceMesh) -> DTensor:
    if "norm" in name:
        return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    rows = [*torch.chunk(tensor, ranks), *[tensor[:0]] * ranks]
    return DTensor.from_local(
        rows[rank].clone(),
        mesh,
        [Shard(0)],
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def check(found: dict[str, torch.Tensor]) -> None:
    assert found.keys() == WHOLE.keys()
    for name, tensor in WHOLE.items():
        assert type(found[name]) is torch.Tensor
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_of_several_ranks_is_put_together(ranks: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "global_step_780" / "actor", ranks)
    check(load_fsdp_state_dict_from_verl_checkpoint(str(folder)))
    check(load_fsdp_state_dict_from_verl_checkpoint(folder.parent))
    (folder / f"model_world_size_{ranks}_rank_0.pt").unlink()
    with pytest.raises(UserError):
        load_fsdp_state_dict_from_verl_checkpoint(folder)


def test_a_step_of_a_run_here_is_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "project" / "name"
    old = {name: tensor + 1 for name, tensor in WHOLE.items()}
    write(run / "stages" / "rft" / "checkpoints" / "step-780-1", 1, old)
    write(run / "stages" / "rft" / "checkpoints" / "step-780-2", 1)
    write(run / "stages" / "rft" / "checkpoints" / "step-800-2", 1, old)
    check(load_fsdp_state_dict_from_verl_checkpoint(str(run / "global_step_780" / "actor")))
    check(load_fsdp_state_dict_from_verl_checkpoint(run / "global_step_780"))
    with pytest.raises(UserError, match="kept are of steps 780, 800"):
        load_fsdp_state_dict_from_verl_checkpoint(run / "global_step_790" / "actor")
    with pytest.raises(UserError, match="holds no checkpoint"):
        load_fsdp_state_dict_from_verl_checkpoint(run)


def write_sharded(folder: Path, ranks: int, names: dict[str, torch.Tensor]) -> Path:
    """As a run here writes it, with an output layer tied to the embedding."""
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        mesh = DeviceMesh("cpu", list(range(ranks)))
        state = {
            f"model.{name}": _part(tensor, name, rank, ranks, mesh)
            for name, tensor in names.items()
        }
        moments = {"optimizer.model.norm.weight.exp_avg": torch.zeros(4)}
        write_shards(state | moments, folder / "shards", rank)
        dist.destroy_process_group()
    tied = {"lm_head.weight": "model.embed.weight"} if "model.embed.weight" in names else {}
    (folder / "state.json").write_text(json.dumps({"tied": tied}))
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_of_a_run_here_is_put_together(ranks: int, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "stages" / "rft" / "checkpoints" / "step-780-1"
    write_sharded(folder, ranks, WHOLE)
    for path in (folder, tmp_path / "run" / "global_step_780" / "actor"):
        found = load_fsdp_state_dict_from_verl_checkpoint(path)
        assert torch.equal(found.pop("lm_head.weight"), WHOLE["model.embed.weight"])
        check(found)
    next(folder.glob("shards/0-*")).unlink()
    with pytest.raises(UserError, match="is not whole"):
        load_fsdp_state_dict_from_verl_checkpoint(folder)


def test_an_adapter_of_a_run_here_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "step-3-1", 2, {"model.q.lora_A.weight": torch.ones(2, 2)})
    with pytest.raises(UserError, match="holds an adapter without its base"):
        load_fsdp_state_dict_from_verl_checkpoint(folder)


def test_an_adapter_is_refused_with_the_versions_that_are_whole(tmp_path: Path) -> None:
    stage = tmp_path / "stages" / "rft"
    names = {"model.q.lora_A.weight": torch.ones(2, 2)}
    folder = write(stage / "checkpoints" / "step-3-1", 1, names)
    version = stage / "weights" / "v3-1"
    version.mkdir(parents=True)
    (version / "config.json").write_text("{}")
    with pytest.raises(UserError, match="v3-1"):
        load_fsdp_state_dict_from_verl_checkpoint(folder)
