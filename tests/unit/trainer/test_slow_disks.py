"""A rank with a slow disk is left alone, by its service and by turns; one that hangs is not."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from services.trainer.control.attempt import Watchdog
from services.trainer.control.gang import RankEvent
from services.trainer.messages import RankActivity, RankAlive
from trinity.runtime import device_lock, life
from trinity.runtime.device_lock import DeviceLock, Holder, HolderWatch
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.manifest import ManifestFile, ManifestHead, seal, verify

WAIT_SECONDS = 120.0
SILENCE_SECONDS = 10.0
HEAD = ManifestHead(kind="checkpoint", stage="rft", step=1, incarnation=1, weights_sha256="0" * 64)


class Limit(Protocol):
    """What ends a silent rank: it is fed signs of life."""

    def record_sign(self) -> None: ...

    def is_over(self) -> bool: ...


@dataclass
class SlowDisk:
    """Each write takes 32 seconds of its own clock; if watched, a sign comes every eight."""

    signs: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    now: float = 0.0
    was_over: bool = False
    is_watched: bool = True

    def clock(self) -> float:
        return self.now

    def write_slowly(self, write: Callable[..., Any], limit: Limit, *args: Any, **more: Any) -> Any:
        for _ in range(4):
            while self.signs.acquire(blocking=False):
                pass  # those of the time before
            self.now += 8
            if self.is_watched:
                assert self.signs.acquire(timeout=WAIT_SECONDS), "no sign of life"
            self.was_over |= limit.is_over()
        return write(*args, **more)


class OfService:
    """The limit that a rank's service has for its silence."""

    def __init__(self, disk: SlowDisk) -> None:
        self._watchdog = Watchdog(SILENCE_SECONDS, disk.clock)
        self._watchdog.record_event(RankEvent(0, RankActivity(activity="saving a checkpoint")))

    def record_sign(self) -> None:
        self._watchdog.record_event(RankEvent(0, RankAlive()))

    def is_over(self) -> bool:
        return self._watchdog.remaining_seconds() < 0


class OfTurns:
    """The limit that an explorer has, which waits for the device of this process."""

    def __init__(self, disk: SlowDisk, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = DeviceLock(path)
        assert self._lock.try_take(Holder.of_this_process("trainer", "to train step 1"))
        self._watch = HolderWatch(path, silence_seconds=SILENCE_SECONDS, clock=disk.clock)
        self._killed: list[Holder] = []
        monkeypatch.setattr(device_lock, "kill_and_see_dead", self._killed.append)
        self._watch.end_silent_holder()

    def record_sign(self) -> None:
        self._lock.show_life()

    def is_over(self) -> bool:
        self._watch.end_silent_holder()
        return bool(self._killed)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    monkeypatch.setattr(life, "LIFE_SECONDS", 0.01)
    return SlowDisk()


@pytest.fixture(params=["service", "turns"])
def limit(
    disk: SlowDisk, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Limit:
    if request.param == "service":
        return OfService(disk)
    return OfTurns(disk, tmp_path / "gpu.lock", monkeypatch)


def signs_of(disk: SlowDisk, limit: Limit) -> LifeSigns:
    """Those of a rank whose disk may take some 100 years for what is written here."""

    def show() -> None:
        limit.record_sign()
        disk.signs.release()

    return LifeSigns(show, bytes_per_second=1e-6)


def write_shards(folder: Path, signs: LifeSigns) -> None:
    import torch

    from trinity.weights.shards import write_shards

    write_shards({"weight": torch.ones(4)}, folder, 0, signs)


def write_version(folder: Path, signs: LifeSigns) -> None:
    import torch

    from services.trainer.checkpoints.dealt import DealtPart
    from services.trainer.collectives import Ranks

    folder.mkdir()
    part = DealtPart(folder, Ranks(0, 1), dtype=torch.float32, life=signs)
    part.write_tensors([("weight", torch.ones(4))])
    assert len(part.finish_files()) == 1


def seal_folder(folder: Path, signs: LifeSigns) -> None:
    folder.mkdir()
    (folder / "shard").write_bytes(b"bytes")
    seal(folder, HEAD, life=signs)


def read_shards(folder: Path, signs: LifeSigns) -> None:
    import torch

    from trinity.weights.shards import read_shards

    write_shards(folder, UNWATCHED)
    found = torch.zeros(4)
    read_shards({"weight": found}, folder, signs)
    assert found.tolist() == [1, 1, 1, 1]


def verify_folder(folder: Path, signs: LifeSigns) -> None:
    folder.mkdir()
    (folder / "shard").write_bytes(b"bytes")
    content = ManifestFile(sha256=hashlib.sha256(b"bytes").hexdigest(), size=5)
    manifest = seal(folder, HEAD, frozenset({"shard"}), {"shard": content})
    verify(folder, manifest, life=signs)


SLOW = {
    "shards of a checkpoint": (write_shards, "trinity.weights.shards.save_file"),
    "shards made durable": (write_shards, "trinity.weights.shards.make_durable"),
    "a version's file": (write_version, "services.trainer.checkpoints.dealt.save_file"),
    "its hash": (write_version, "services.trainer.checkpoints.dealt.describe"),
    "a checkpoint's hashes": (seal_folder, "trinity.weights.manifest.describe"),
    "shards that are read": (read_shards, "trinity.weights.shards._read_slice"),
    "a checkpoint that is verified": (verify_folder, "trinity.weights.manifest.describe"),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_work_with_a_disk_is_no_silence(
    name: str, disk: SlowDisk, limit: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, slow = SLOW[name]
    make_slow(slow, disk, limit, monkeypatch)
    write(tmp_path / "written", signs_of(disk, limit))
    assert disk.now >= 3 * SILENCE_SECONDS
    assert not disk.was_over


@pytest.mark.parametrize("name", SLOW)
def test_without_signs_it_would_be_ended(
    name: str, disk: SlowDisk, limit: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, slow = SLOW[name]
    disk.is_watched = False
    make_slow(slow, disk, limit, monkeypatch)
    write(tmp_path / "written", UNWATCHED)
    assert disk.was_over


def make_slow(place: str, disk: SlowDisk, limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = place.rpartition(".")
    imported = __import__(module, fromlist=[name])
    slow = partial(disk.write_slowly, getattr(imported, name), limit)
    monkeypatch.setattr(imported, name, slow)


def test_a_disk_that_hangs_gives_no_signs_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "LIFE_SECONDS", 0.01)
    shown = threading.Semaphore(0)
    signs = LifeSigns(shown.release, bytes_per_second=1000.0)
    with signs.on_disk(50):
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "life")
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "its bytes had 0.05 seconds"


def test_small_files_need_no_thread() -> None:
    shown: list[int] = []
    signs = LifeSigns(lambda: shown.append(1))
    for _ in range(3):
        with signs.on_disk(2**20):
            assert "life" not in {thread.name for thread in threading.enumerate()}
    assert shown == [1], "at most one a second"
