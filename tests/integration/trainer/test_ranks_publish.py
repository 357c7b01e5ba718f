"""A gang publishes what one process would, each rank its own files."""

import json
from pathlib import Path

import pytest

from tests.integration.trainer.deal_on_rank import (
    ADAPTED,
    HALF,
    NUM_VERSIONS,
    RANK,
    SENDING,
    SPLIT,
    is_adapted,
    stepped,
    with_change,
)
from tests.integration.trainer.test_two_ranks import start_gang
from tests.unit.trainer.test_dealt import BUCKET, LARGEST, SIZES, Tensors, loaded
from trinity.weights.delta import SUFFIX
from trinity.weights.manifest import verify
from trinity.weights.whole import whole_model

PROGRAM = "tests.integration.trainer.deal_on_rank"
ALL_BYTES = 4 * sum(SIZES.values())


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_a_gang_publishes_in_the_background_what_one_process_would(
    tmp_path: Path, num_ranks: int
) -> None:
    start_gang(num_ranks, PROGRAM, tmp_path)
    assert_published_as_by_one(tmp_path, num_ranks)


@pytest.mark.parametrize("num_per_host", [3, 1])
def test_so_do_ranks_that_hold_shards_of_unequal_rows_on_one_host_or_several(
    tmp_path: Path, num_per_host: int
) -> None:
    start_gang(3, PROGRAM, tmp_path, Path(SPLIT), num_per_host=num_per_host)
    assert_published_as_by_one(tmp_path, 3)


def test_an_adapter_is_merged_by_the_rank_that_writes_and_by_no_other(tmp_path: Path) -> None:
    """A rank holds a bucket and a tensor above its shards, and is sent what it writes alone."""
    start_gang(2, PROGRAM, tmp_path, Path(ADAPTED))
    found = published(tmp_path)
    expected = [with_change(stepped(version)) for version in range(NUM_VERSIONS + 1)]
    assert_weights(found, expected, num_files=None)
    held = [json.loads((tmp_path / f"held-{rank}.json").read_text()) for rank in range(2)]
    factors = sum(4 * RANK * (size // 8 + 8) for name, size in SIZES.items() if is_adapted(name))
    for own in held:
        assert 0 < own["peak"] <= max(BUCKET, LARGEST) + LARGEST
    received = sum(own["received"] for own in held)
    assert received <= NUM_VERSIONS * (ALL_BYTES + factors) / 2, "each tensor goes to its writer"


def test_weights_that_are_sent_from_memory_are_put_together_by_the_sender_alone(
    tmp_path: Path,
) -> None:
    start_gang(2, PROGRAM, tmp_path, Path(SENDING))
    found = published(tmp_path)
    expected = [stepped(version) for version in range(NUM_VERSIONS + 1)]
    assert_weights(found, expected, num_files=None)
    assert found["offered"] == found["roots"], "the sender has what the files hold"
    sender, other = (json.loads((tmp_path / f"held-{rank}.json").read_text()) for rank in range(2))
    assert (other["peak"], other["received"]) == (0, 0)
    assert sender["peak"] >= ALL_BYTES, "the control: this count sees what is kept"
    assert sender["received"] == NUM_VERSIONS * ALL_BYTES / 2, "the other one's half of each"


def test_ranks_store_the_differences_of_their_files(tmp_path: Path) -> None:
    """All build on the version that the first rank chose."""
    import torch

    start_gang(2, PROGRAM, tmp_path, Path(HALF))
    found = published(tmp_path)
    for version, path in enumerate(map(Path, found["paths"])):
        manifest = verify(path, bytes.fromhex(found["manifests"][version]))
        assert len(list(path.glob(f"*{SUFFIX}"))) == (2 if version else 0)
        expected = stepped(version, num_changed=1)
        with whole_model(path, manifest.roots) as whole:
            there = loaded(whole)
        assert there.keys() == expected.keys()
        assert all(torch.equal(there[name], expected[name].bfloat16()) for name in expected)


def assert_published_as_by_one(tmp_path: Path, num_ranks: int) -> None:
    """The same root and the same tensors, each rank's in its own file."""
    expected = [stepped(version) for version in range(NUM_VERSIONS + 1)]
    assert_weights(published(tmp_path), expected, num_files=num_ranks)


def published(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((folder / "found.json").read_text())
    return found


def assert_weights(
    found: dict[str, list[str]], expected: list[Tensors], num_files: int | None
) -> None:
    import torch

    from services.trainer.checkpoints.weights import weights_hash

    hashes = [weights_hash(tensors).hex() for tensors in expected]
    assert [*found["roots"], found["current"]] == hashes
    for version, path in enumerate(map(Path, found["paths"])):
        verify(path, bytes.fromhex(found["manifests"][version]))
        written = len(list(path.glob("*.safetensors")))
        assert written == num_files if num_files is not None else written > 2
        there = loaded(path)
        assert all(torch.equal(there[name], tensor) for name, tensor in expected[version].items())
