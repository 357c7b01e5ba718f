"""A run by turns has its GPU for itself, whatever other runs of the machine call it."""

import errno
import os
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.run.local.gpu_claims import GpuClaims, gpu_id

FIRST, SECOND = "GPU-1111aaaa-0000", "GPU-2222bbbb-0000"


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Two GPUs, as the driver tells of them."""
    for address, uuid in (("0000:41:00.0", SECOND), ("0000:01:00.0", FIRST)):
        folder = tmp_path / "driver" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t X\nGPU UUID: \t {uuid}\nBus: 1\n")
    return tmp_path / "driver"


def claims(tmp_path: Path, *gpus: str, alone: bool, label: str = "p/run") -> GpuClaims:
    return GpuClaims(
        gpus,
        alone=alone,
        label=label,
        job_dir=tmp_path / label.rpartition("/")[2],
        folder=tmp_path / "claims",
        driver=tmp_path / "driver",
    )


def test_a_second_run_by_turns_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = claims(tmp_path, "0", alone=True, label="p/first")
    second = claims(tmp_path, "0", alone=True, label="p/second")
    first.take()
    with pytest.raises(
        UserError, match=r"GPU 0 is used by the run p/first in .*/first, and `mode: "
    ):
        second.take()
    assert second.descriptors == ()
    first.release()
    second.take()
    second.release()


@pytest.mark.parametrize("alone_first", [True, False])
def test_a_run_by_turns_and_another_one_exclude_each_other(
    tmp_path: Path, alone_first: bool
) -> None:
    first, second = (
        claims(tmp_path, "0", alone=alone_first),
        claims(tmp_path, "0", alone=not alone_first),
    )
    first.take()
    with pytest.raises(UserError, match=r"colocate.*CUDA_VISIBLE_DEVICES"):
        second.take()
    first.release()


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_full_disk_is_told_in_a_sentence(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    refused = claims(tmp_path, "0", alone=True)
    with monkeypatch.context() as full:
        full.setattr(os, call, refuse)
        with pytest.raises(UserError, match=r"cannot be written \(No space left.*make room in"):
            refused.take()
    assert refused.descriptors == ()
    refused.take()
    refused.release()


def test_runs_with_gpus_for_each_role_share_them_as_before(tmp_path: Path) -> None:
    first, second = (claims(tmp_path, "0", "1", alone=False) for _ in range(2))
    first.take()
    second.take()
    assert len(second.descriptors) == 2
    first.release()
    second.release()


def test_other_gpus_are_free_and_none_is_kept_of_a_run_that_is_refused(tmp_path: Path) -> None:
    first = claims(tmp_path, "1", alone=True)
    first.take()
    both = claims(tmp_path, "0", "1", alone=True)
    with pytest.raises(UserError, match="GPU 1 is used"):
        both.take()
    other = claims(tmp_path, "0", alone=True)
    other.take()
    other.release()
    first.release()


def test_one_gpu_has_one_name(tmp_path: Path, driver: Path) -> None:
    assert [gpu_id(name, driver) for name in ("0", FIRST, FIRST[:9])] == [FIRST] * 3
    assert [gpu_id(name, driver) for name in ("1", "2", "MIG-7", "GPU-")] == [
        SECOND,
        "2",
        "MIG-7",
        "GPU-",
    ]
    by_number, by_uuid = (claims(tmp_path, name, alone=True) for name in ("0", FIRST))
    by_number.take()
    with pytest.raises(UserError, match="is used by"):
        by_uuid.take()
    by_number.release()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir(mode=0o755)
    (tmp_path / "claims").chmod(0o755)
    with pytest.raises(UserError, match="not a folder of yours alone: remove it"):
        claims(tmp_path, "0", alone=True).take()
    (tmp_path / "claims").rmdir()
    (tmp_path / "claims").symlink_to(tmp_path)
    with pytest.raises(UserError, match="not a folder of yours alone"):
        claims(tmp_path, "0", alone=True).take()
