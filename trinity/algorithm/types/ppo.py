"""PPO with a critic."""

from trinity.algorithm.algorithm_type import AlgorithmType

PPO = AlgorithmType(
    name="ppo",
    summary="A critic's values make the advantages (GAE); the policy moves within a clipped ratio.",
    when_to_use=(
        "Long answers or rewards within them, where a critic pays for its memory; one rollout "
        "a task is enough."
    ),
    paper="https://arxiv.org/abs/1707.06347",
    safe_lag="4 or more",
    needs_critic=True,
    advantage_fn="ppo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
