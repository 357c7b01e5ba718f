"""The names in a checkpoint's folder.

state.json, shards/            weights and optimizer, which any number of ranks can load
model_world_size_2_rank_0.pt   of verl: one part for each rank
"""

import re
from pathlib import Path

STATE_NAME = "state.json"
"""What is no tensor; its presence tells the layout."""
LAYOUT = 1
"""The number of the layout, which `state.json` holds; a later one is of a later release."""
MODEL_CONFIG = "huggingface"
"""Folder with the model's config.json, also in verl's checkpoints."""
SHARDS = "shards"
WEIGHT = "model."
OPTIMIZER = "optimizer."
"""What the names of tensors in the shards begin with."""
RANK_PART = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def rank_part(num_ranks: int, rank: int) -> str:
    """Returns the end of the names of a rank's parts, the same for weights, optimizer and rest."""
    return f"world_size_{num_ranks}_rank_{rank}.pt"


def is_sharded(directory: Path) -> bool:
    """Returns True for a folder that any number of ranks can load."""
    return (directory / STATE_NAME).is_file()


def num_ranks_of(directory: Path) -> int | None:
    """Returns the number of ranks that wrote the folder, one part each.

    None if the folder has no parts or some are missing.
    """
    parts = [m for file in directory.glob("*.pt") if (m := RANK_PART.fullmatch(file.name))]
    sizes = {int(part[1]) for part in parts}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    return size if {int(part[2]) for part in parts} == set(range(size)) else None
