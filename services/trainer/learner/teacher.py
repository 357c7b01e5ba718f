"""A teacher in the trainer, which shows its distributions before each micro-batch."""

from pathlib import Path

from tensordict import TensorDict
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.row_engine import Lesson
from services.trainer.backend.verl_worker import build_teacher, packs_rows
from services.trainer.learner.verl_calls import OutputRecorder
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError


class VocabularyTeacher:
    """A model whose weights stay as they are. Collective.

    teacher = VocabularyTeacher(plan, directory)
    teacher.teach(data, actor.worker)
    actor.worker.forward_backward(data)
    """

    def __init__(self, plan: StagePlan, model_directory: Path) -> None:
        self._direction = plan.config.algorithm.distillation.divergence
        self.worker = build_teacher(plan, model_directory)
        self.worker.engine.shows_top_k = plan.config.algorithm.distillation.top_k
        self.worker.set_loss_fn(OutputRecorder(()))

    def check_rows(self, student: TinkerTrainingWorker) -> None:
        """Raises: UserError if only one of the two models can take rows without padding."""
        if packs_rows(self.worker) != packs_rows(student):
            raise UserError(
                "`algorithm.distillation.model_path` and the policy take rows in different forms, "
                "with and without padding: give `trainer.use_remove_padding: false`"
            )

    def teach(self, data: TensorDict, student: TinkerTrainingWorker) -> None:
        """Hands the student what it is to be compared with in its next pass over the same rows."""
        self.worker.infer_batch(data)
        shown, self.worker.engine.shown = self.worker.engine.shown, None
        assert shown is not None
        student.engine.lesson = Lesson(teacher=shown, direction=self._direction)
