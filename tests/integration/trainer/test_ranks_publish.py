"""A gang publishes what one process would, each rank its own files."""

import json
from pathlib import Path

import pytest

from tests.integration.trainer.deal_on_rank import NUM_VERSIONS, SPLIT, stepped
from tests.integration.trainer.test_two_ranks import start_gang
from tests.unit.trainer.test_dealt import loaded
from trinity.weights.manifest import verify

RANK = "tests.integration.trainer.deal_on_rank"


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_gang_publishes_in_the_background_what_one_process_would(
    tmp_path: Path, num_ranks: int
) -> None:
    start_gang(num_ranks, RANK, tmp_path)
    assert_published_as_by_one(tmp_path, num_ranks)


@pytest.mark.parametrize("num_per_host", [3, 1])
def test_so_do_ranks_that_hold_shards_of_unequal_rows_on_one_host_or_several(
    tmp_path: Path, num_per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_per_host))
    start_gang(3, RANK, tmp_path, Path(SPLIT))
    assert_published_as_by_one(tmp_path, 3)


def assert_published_as_by_one(tmp_path: Path, num_ranks: int) -> None:
    """The same root and the same tensors, each rank's in its own file."""
    import torch

    from services.trainer.checkpoints.weights import weights_hash

    found = json.loads((tmp_path / "found.json").read_text())
    expected = [weights_hash(stepped(version)).hex() for version in range(NUM_VERSIONS + 1)]
    assert [*found["roots"], found["current"]] == expected
    for version, path in enumerate(map(Path, found["paths"])):
        verify(path, bytes.fromhex(found["manifests"][version]))
        assert len(list(path.glob("*.safetensors"))) == num_ranks
        there = loaded(path)
        assert all(torch.equal(there[name], value) for name, value in stepped(version).items())
