"""A gang publishes what one process would, each rank its own files."""

import json
from pathlib import Path

import pytest

from tests.integration.trainer.deal_on_rank import NUM_VERSIONS, stepped
from tests.integration.trainer.test_two_ranks import start_gang
from tests.unit.trainer.test_dealt import loaded
from trinity.weights.manifest import verify


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_gang_publishes_in_the_background_what_one_process_would(
    tmp_path: Path, num_ranks: int
) -> None:
    import torch

    from services.trainer.checkpoints.weights import weights_hash

    start_gang(num_ranks, "tests.integration.trainer.deal_on_rank", tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    expected = [weights_hash(stepped(version)).hex() for version in range(NUM_VERSIONS + 1)]
    assert [*found["roots"], found["current"]] == expected
    for version, path in enumerate(map(Path, found["paths"])):
        verify(path, bytes.fromhex(found["manifests"][version]))
        assert len(list(path.glob("*.safetensors"))) == num_ranks
        there = loaded(path)
        assert all(torch.equal(there[name], value) for name, value in stepped(version).items())
