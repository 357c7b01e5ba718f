"""The registry of algorithm types: each declares its parts by name, without computation."""

from trinity.algorithm.algorithm_type import AlgorithmType
from trinity.algorithm.types_without_rewards import (
    CPT,
    DPO,
    GRPO_DISTILL,
    IPO,
    JENSEN_SHANNON,
    JSD,
    ON_POLICY_DISTILL,
    ORPO,
    SDPO,
    SFT,
    SIMPO,
    VOCABULARY_DISTILL,
)
from trinity.plugins import Registry

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

VAPO = AlgorithmType(
    name="vapo",
    summary=(
        "PPO whose critic learns undiscounted returns, while the policy's lambda grows with the "
        "answer's length; rare tokens may rise further."
    ),
    when_to_use=(
        "Long reasoning with a critic, where PPO's values are biased at first and a reward at the "
        "end fades before it reaches the beginning; give `trainer.critic_warmup`."
    ),
    paper="https://arxiv.org/abs/2504.05118",
    safe_lag="4 or more",
    repeat_times=16,
    needs_critic=True,
    advantage_fn="vapo",
    policy_loss_fn="ppo",
    args={"policy_loss_fn": {"clip_range_high": 0.28}},
)

PF_PPO = AlgorithmType(
    name="pf_ppo",
    summary="PPO in which rollouts with telling scores count more often than those in between.",
    when_to_use="A learned reward model, which is right about very good and very bad answers only.",
    paper="https://arxiv.org/abs/2409.06957",
    safe_lag="4 or more",
    needs_critic=True,
    advantage_fn="pf_ppo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
)

GRPO = AlgorithmType(
    name="grpo",
    summary="Compares each rollout with the mean of its task's rollouts, in standard deviations.",
    when_to_use="The usual start for rewards that can be checked.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

GRPO_VERL = AlgorithmType(
    name="grpo_verl",
    summary=(
        "GRPO as verl computes it: in the trainer, over the rewards with the KL penalty "
        "already subtracted."
    ),
    when_to_use="GRPO with `kl_penalty_fn`, whose penalty the buffer cannot see.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo_verl",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

DR_GRPO = AlgorithmType(
    name="dr_grpo",
    summary="GRPO without the division by the standard deviation and by the answer's length.",
    when_to_use="Where GRPO makes wrong answers ever longer.",
    paper="https://arxiv.org/abs/2503.20783",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="dr_grpo",
    policy_loss_fn="ppo",
    loss_agg_mode="seq-mean-token-sum-norm",
)

DAPO = AlgorithmType(
    name="dapo",
    summary=(
        "GRPO that clips increases later than decreases and replaces groups in which all "
        "rollouts are equal."
    ),
    when_to_use="Long reasoning without a reference model, where entropy collapses under GRPO.",
    paper="https://arxiv.org/abs/2503.14476",
    safe_lag="4 or more",
    repeat_times=16,
    advantage_fn="grpo",
    policy_loss_fn="ppo",
    entropy_loss_fn="default",
    args={
        "advantage_fn": {"std_threshold": 0.0},
        "policy_loss_fn": {"clip_range_high": 0.28},
    },
)

MAXRL = AlgorithmType(
    name="maxrl",
    summary=(
        "Compares each rollout with its task's mean reward and divides by it, which follows the "
        "likelihood of a right answer: tasks that are solved rarely weigh more."
    ),
    when_to_use="Rewards of 0 and 1, hard tasks and many rollouts, where pass@k falls under GRPO.",
    paper="https://arxiv.org/abs/2602.02710",
    safe_lag="4 or more",
    repeat_times=16,
    advantage_fn="maxrl",
    policy_loss_fn="ppo",
)

GFPO = AlgorithmType(
    name="gfpo",
    summary="GRPO that samples many rollouts of a task and trains on the shortest of them alone.",
    when_to_use="Answers grow longer than their accuracy is worth: sample more, to think less.",
    paper="https://arxiv.org/abs/2508.09726",
    safe_lag="4 or more",
    repeat_times=16,
    advantage_fn="gfpo",
    policy_loss_fn="ppo",
)

GVPO = AlgorithmType(
    name="gvpo",
    summary=(
        "Regression within a task's rollouts: the change of an answer's log-probability is fitted "
        "to its reward, without importance ratios or clipping."
    ),
    when_to_use=(
        "Fresh rollouts, without ratios or clipping; the faster the policy moves, the larger a "
        "`beta` it needs."
    ),
    paper="https://arxiv.org/abs/2504.19599",
    safe_lag="0 (carries)",
    repeat_times=8,
    advantage_fn="gvpo",
    policy_loss_fn="gpg",
    loss_agg_mode="seq-mean-token-sum",
)

KTO = AlgorithmType(
    name="kto",
    summary=(
        "Makes each good rollout likelier and each bad one less likely than under the reference "
        "model, less and less the further it already is."
    ),
    when_to_use="Answers judged good or bad one by one; fresh rollouts, a batch trained once.",
    paper="https://arxiv.org/abs/2402.01306",
    safe_lag="none (edits)",
    repeat_times=8,
    advantage_fn="kto",
    policy_loss_fn="gpg",
    loss_agg_mode="seq-mean-token-sum",
)

ONLINE_DPO = AlgorithmType(
    name="online_dpo",
    summary="DPO on pairs of rollouts: the best of a task's answers against its worst.",
    when_to_use="Rewards that only rank answers; fresh rollouts, each batch trained once.",
    paper="https://arxiv.org/abs/2402.04792",
    safe_lag="none (edits)",
    repeat_times=8,
    advantage_fn="online_dpo",
    policy_loss_fn="gpg",
    loss_agg_mode="seq-mean-token-sum",
)

REINFORCEPLUSPLUS = AlgorithmType(
    name="reinforceplusplus",
    summary="Discounted returns, whitened over the whole batch instead of the group.",
    when_to_use="Many tasks with few rollouts each.",
    paper="https://arxiv.org/abs/2501.03262",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="reinforceplusplus",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

RLOO = AlgorithmType(
    name="rloo",
    summary="Compares each rollout with the mean of the others of its task.",
    when_to_use="An unbiased baseline without a critic; groups may be small.",
    paper="https://arxiv.org/abs/2402.14740",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="rloo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

OPMD = AlgorithmType(
    name="opmd",
    summary="Rewards less their group's mean weight the log-probabilities; no importance ratio.",
    when_to_use="Fresh rollouts, without importance ratios.",
    paper="https://arxiv.org/abs/2501.12599",
    safe_lag="none (drawers)",
    repeat_times=2,
    advantage_fn="opmd",
    policy_loss_fn="opmd",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

ASYMRE = AlgorithmType(
    name="asymre",
    summary=(
        "REINFORCE with a baseline a little below the group's mean, so that good answers "
        "weigh more than bad ones."
    ),
    when_to_use="Fresh rollouts, without importance ratios; older ones with `preset: tis`.",
    paper="https://arxiv.org/abs/2506.20520",
    safe_lag="0 (carries)",
    repeat_times=2,
    advantage_fn="asymre",
    policy_loss_fn="opmd",
)

TOPR = AlgorithmType(
    name="topr",
    summary="Good answers train in full, bad ones by their truncated importance ratio.",
    when_to_use="Old or foreign rollouts, of which many are wrong.",
    paper="https://arxiv.org/abs/2503.14286",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="reinforce",
    policy_loss_fn="topr",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

CISPO = AlgorithmType(
    name="cispo",
    summary=(
        "Clips the importance weight instead of the update, so that every token keeps its gradient."
    ),
    when_to_use="Long reasoning, fresh rollouts: PPO's clipping silences rare, decisive tokens.",
    paper="https://arxiv.org/abs/2506.13585",
    safe_lag="0 (carries)",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="cispo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

GSPO = AlgorithmType(
    name="gspo",
    summary="One importance ratio for the whole answer, clipped as a whole.",
    when_to_use="Mixtures of experts and long answers, whose token ratios are noise.",
    paper="https://arxiv.org/abs/2507.18071",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="gspo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
    loss_agg_mode="seq-mean-token-mean",
)

GSPO_TOKEN = AlgorithmType(
    name="gspo_token",
    summary="GSPO's sequence ratio, with a gradient through each token by its own advantage.",
    when_to_use="Like gspo, where advantages differ within an answer.",
    paper="https://arxiv.org/abs/2507.18071",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="gspo_token",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
    loss_agg_mode="seq-mean-token-mean",
)

SAPO = AlgorithmType(
    name="sapo",
    summary="A smooth gate instead of clipping, stricter for bad answers.",
    when_to_use="Where hard clipping makes training jump, with rollouts at most one step old.",
    paper="https://arxiv.org/abs/2511.20347",
    safe_lag="1 (carries)",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="sapo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

DCPO = AlgorithmType(
    name="dcpo",
    summary=(
        "GRPO whose clip range depends on the token: the rarer it was, the further it may move."
    ),
    when_to_use="Reasoning whose decisive tokens are rare ones, which a fixed range clips first.",
    paper="https://arxiv.org/abs/2509.02333",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="grpo",
    policy_loss_fn="dcpo",
    entropy_loss_fn="default",
    loss_agg_mode="seq-mean-token-mean",
)

M2PO = AlgorithmType(
    name="m2po",
    summary=(
        "GRPO whose clip range follows the batch: as wide as the mean square of the log-ratios "
        "allows, so that only the outliers are clipped."
    ),
    when_to_use="Fresh rollouts of which the outliers alone are to be clipped.",
    paper="https://arxiv.org/abs/2510.01161",
    safe_lag="0 (carries)",
    repeat_times=8,
    advantage_fn="grpo",
    policy_loss_fn="m2po",
    entropy_loss_fn="default",
)

SPPO = AlgorithmType(
    name="sppo",
    summary="The log-ratio, trained only where the ratio is within its range.",
    when_to_use="Several updates on the same fresh rollouts with a plain objective.",
    paper="https://arxiv.org/abs/2108.05828",
    safe_lag="0 (carries)",
    repeat_times=2,
    advantage_fn="opmd",
    policy_loss_fn="sppo",
)

REC = AlgorithmType(
    name="rec",
    summary=(
        "Group-relative REINFORCE; `clip_mode`, `weight`, `regularizer` and `drop` select "
        "its variants."
    ),
    when_to_use="To find out which of clipping, weighting and dropping an off-policy run needs.",
    paper="https://arxiv.org/abs/2509.24203",
    safe_lag="0 (carries)",
    repeat_times=2,
    advantage_fn="rec",
    policy_loss_fn="rec",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

RAFT = AlgorithmType(
    name="raft",
    summary="Supervised fine-tuning on the rollouts that were good enough; drops the others.",
    when_to_use="A robust first baseline, also for old rollouts.",
    paper="https://arxiv.org/abs/2304.06767",
    safe_lag="4 or more",
    repeat_times=4,
    advantage_fn="reward_filter",
    policy_loss_fn="sft",
)

MIX = AlgorithmType(
    name="mix",
    summary="A weighted sum of PPO's loss on rollouts and SFT's on expert rows of the same batch.",
    when_to_use="Good demonstrations exist and RL alone finds too few right answers.",
    paper="https://arxiv.org/abs/2505.17826",
    safe_lag="4 or more",
    repeat_times=8,
    sample_strategy="mix",
    advantage_fn="grpo",
    policy_loss_fn="mix",
    kl_loss_fn="k2",
    entropy_loss_fn="mix",
)

MIX_CHORD = AlgorithmType(
    name="mix_chord",
    summary=(
        "Like mix, but the weight of the expert rows decays, and tokens are weighted by how "
        "unsure the policy is."
    ),
    when_to_use="Like mix, with experts whose style differs from the model's.",
    paper="https://arxiv.org/abs/2508.11408",
    safe_lag="4 or more",
    repeat_times=8,
    sample_strategy="mix",
    advantage_fn="grpo",
    policy_loss_fn="mix_chord",
    kl_loss_fn="k2",
    entropy_loss_fn="mix",
)

MULTI_STEP_GRPO = AlgorithmType(
    name="multi_step_grpo",
    summary="GRPO on each rollout's last reward, given to all of its steps.",
    when_to_use="Agents that record each step as an experience and are rewarded only at the end.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="step_wise_grpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)

GIGPO = AlgorithmType(
    name="gigpo",
    summary=(
        "Compares rollouts with each other, and steps with those of other rollouts in the "
        "same state."
    ),
    when_to_use="Agents in environments whose states repeat, with rewards for steps.",
    paper="https://arxiv.org/abs/2505.10978",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="gigpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)


ALGORITHM_TYPES: Registry[AlgorithmType] = Registry(
    "algorithm type",
    {
        declared.name: f"{__name__}.{declared.name.upper()}"
        for declared in (
            PPO,
            VAPO,
            PF_PPO,
            GRPO,
            GRPO_VERL,
            DR_GRPO,
            DAPO,
            MAXRL,
            GFPO,
            GVPO,
            KTO,
            ONLINE_DPO,
            REINFORCEPLUSPLUS,
            RLOO,
            OPMD,
            ASYMRE,
            TOPR,
            CISPO,
            GSPO,
            GSPO_TOKEN,
            SAPO,
            DCPO,
            M2PO,
            SPPO,
            REC,
            RAFT,
            MIX,
            MIX_CHORD,
            MULTI_STEP_GRPO,
            GIGPO,
            ON_POLICY_DISTILL,
            SDPO,
            GRPO_DISTILL,
            VOCABULARY_DISTILL,
            JSD,
            JENSEN_SHANNON,
            SFT,
            CPT,
            DPO,
            IPO,
            SIMPO,
            ORPO,
        )
    },
    adapter="trinity.rft.algorithm.algorithm.adapt_algorithm",
)
"""In the order of the documentation; a plugin may register more."""
