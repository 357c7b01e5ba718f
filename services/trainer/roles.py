"""The models of a stage: the actor and, where the algorithm needs them, reference and critic."""

from dataclasses import dataclass
from pathlib import Path

from services.trainer.actor import Actor
from services.trainer.calls import Calls
from services.trainer.critic import Critic
from services.trainer.reference import PolicyWithoutAdapter, Reference
from trinity.config.plan import StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The models, all sharded over the same ranks."""

    actor: Actor
    reference: Reference | PolicyWithoutAdapter | None
    critic: Critic | None

    @classmethod
    def load(
        cls,
        plan: StagePlan,
        *,
        model_directory: Path,
        policy_directory: Path,
        critic_directory: Path,
        calls: Calls,
    ) -> "Roles":
        """Loads them at the stage's start; the reference is of the model, wherever the policy
        begins.

        Raises: UserError when a model cannot be read.
        """
        reference: Reference | PolicyWithoutAdapter | None = None
        critic = None
        actor = Actor(plan=plan, model_directory=policy_directory, calls=calls)
        if plan.needs_reference and actor.adapter and policy_directory == model_directory:
            reference = PolicyWithoutAdapter(
                worker=actor.worker, adapter=actor.adapter, calls=calls
            )
        elif plan.needs_reference:
            reference = Reference(plan=plan, model_directory=model_directory, calls=calls)
        if plan.needs_critic:
            critic = Critic(plan=plan, model_directory=critic_directory, calls=calls)
        return cls(actor=actor, reference=reference, critic=critic)
