"""A stage that was planned for GPUs is refused where its rank sees none."""

from pathlib import Path

import pytest
import torch

from tests.unit.config.builders import stage
from tests.unit.trainer.builders import save_tiny_model
from trinity.errors import UserError


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")
def test_a_stage_for_gpus_does_not_train_on_the_processor(tmp_path: Path) -> None:
    from services.trainer.backend.verl_worker import build_actor

    model = save_tiny_model(tmp_path / "model")
    plan = stage(model={"model_path": str(model)}, cluster={"gpu_per_node": 2})
    with pytest.raises(UserError, match=r"1 rank cannot have a GPU each, as the trainer sees 0"):
        build_actor(plan, model)
