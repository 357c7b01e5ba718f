"""Section `synchronizer`: when and how new weights reach the explorer."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.reasons import DERIVED, NO_RAY, UNREAD_THERE
from trinity.config.section import NonNegative, Positive, Section
from trinity.config.status import Choices, Planned


class SynchronizerConfig(Section):
    """Transfer of weights from trainer to explorer."""

    sync_method: Annotated[
        Literal["checkpoint", "nccl"],
        Choices(
            planned={
                "memory": "weights through shared memory; through files meanwhile",
            },
            aliases={"offline": "checkpoint", "online": "nccl"},
        ),
    ] = "checkpoint"
    """How weights are transferred; `checkpoint`: as files, whose hashes the explorer verifies.
    `nccl`: they are written all the same, but engines take them from the trainer's memory, by gloo
    where there are no GPUs; what does not come whole and in time is taken from the files."""
    sync_style: Annotated[
        Literal["fixed", "explorer_driven", "trainer_driven"],
        Choices(
            planned={
                "fully_async": "explorer and trainer without a common step",
            },
            aliases={
                "dynamic_by_explorer": "explorer_driven",
                "dynamic_by_trainer": "trainer_driven",
            },
        ),
    ] = "fixed"
    """What triggers a transfer. `fixed`: each explore step has its version, by the two keys below.
    `trainer_driven`: an explore step takes the newest version there is and waits for none.
    `explorer_driven`: after `sync_interval` explore steps a newer one is asked for and waited for,
    and only then written."""
    sync_interval: Positive = 1
    """Train steps between two versions; with `explorer_driven` explore steps."""
    sync_offset: NonNegative = 0
    """Explore steps the explorer may be ahead of the trainer; 0 with interval 1 is on-policy."""
    sync_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that either side waits for the other."""
    explorer_sync_interval: Annotated[
        Positive | None, Planned("explorer and trainer share `sync_interval`")
    ] = None
    """Explore steps between two versions."""
    trainer_sync_interval: Annotated[
        Positive | None, Planned("explorer and trainer share `sync_interval`")
    ] = None
    """Train steps between two versions."""
    group_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "rollout_weight_sync"
    """How the names of the groups begin that `sync_method: nccl` sends weights in."""
    wait_for_checkpoint: Annotated[bool, UNREAD_THERE] = False
    """Wait for a checkpoint at the start."""
    explorer_world_size: Annotated[int | None, DERIVED] = None
    """GPUs of the rollout engines."""
    ray_namespace: Annotated[str, NO_RAY] = ""
    """Ray's name for the run."""
