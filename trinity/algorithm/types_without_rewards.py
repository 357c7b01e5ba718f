"""Algorithm types that learn from a teacher, or from given rows, without comparing rewards."""

from trinity.algorithm.algorithm_type import AlgorithmType

ON_POLICY_DISTILL = AlgorithmType(
    name="on_policy_distill",
    summary="Rewards each token of the student's own answers by how likely a teacher finds it.",
    when_to_use="A stronger model with the same tokenizer is available.",
    paper="https://thinkingmachines.ai/blog/on-policy-distillation/",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="on_policy_distill",
    policy_loss_fn="ppo",
)
SDPO = AlgorithmType(
    name="sdpo",
    summary=(
        "Rewards each token of the policy's answers by how likely the policy itself finds it once "
        "it has a hint."
    ),
    when_to_use=(
        "No stronger model, but solutions, error messages or other feedback in words, with "
        "`self_distill_workflow`."
    ),
    paper="https://arxiv.org/abs/2601.20802",
    repeat_times=8,
    advantage_fn="on_policy_distill",
    policy_loss_fn="ppo",
)
GRPO_DISTILL = AlgorithmType(
    name="grpo_distill",
    summary="GRPO's advantage plus a teacher's opinion of every token.",
    when_to_use=(
        "A teacher and rewards that can be checked: faster than rewards alone, and not bounded by "
        "the teacher."
    ),
    paper="https://thinkingmachines.ai/blog/on-policy-distillation/",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="grpo_distill",
    policy_loss_fn="ppo",
)
VOCABULARY_DISTILL = AlgorithmType(
    name="vocabulary_distill",
    summary=(
        "Trains the policy, on answers it generated, towards the full next-token distribution of "
        "a teacher in the trainer."
    ),
    when_to_use=(
        "A stronger model with the same tokenizer that fits on the GPUs next to the policy: each "
        "position teaches about the whole vocabulary, not only about the sampled token."
    ),
    paper="https://arxiv.org/abs/2306.13649",
    safe_lag="4 or more",
    policy_loss_fn="gpg",
)

JSD = AlgorithmType(
    name="jsd",
    summary="On-policy distillation, between the forward and the reverse divergence.",
    when_to_use="Only to match Trinity-RFT's `jsd`: with its default `lambda_coef` "
    "the model unlearns, at 0 it is on_policy_distill. The true Jensen-Shannon divergence is "
    "jensen_shannon.",
    paper="https://arxiv.org/abs/2306.13649",
    safe_lag="none (addition); 4 or more with `lambda_coef: 0`",
    repeat_times=8,
    advantage_fn="jsd",
    policy_loss_fn="ppo",
)
JENSEN_SHANNON = AlgorithmType(
    name="jensen_shannon",
    summary="On-policy distillation that descends the true generalised Jensen-Shannon divergence.",
    when_to_use="A teacher whose modes the student cannot all cover.",
    paper="https://arxiv.org/abs/2306.13649",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="jensen_shannon",
    policy_loss_fn="ppo",
)
SFT = AlgorithmType(
    name="sft",
    summary="Raises the likelihood of given answers.",
    when_to_use="A warm start before RL, or demonstrations alone.",
    paper="https://arxiv.org/abs/2203.02155",
    schema="sft",
    policy_loss_fn="sft",
)
CPT = AlgorithmType(
    name="cpt",
    summary="Raises the likelihood of whole texts.",
    when_to_use="New knowledge from raw text.",
    paper="https://arxiv.org/abs/2004.10964",
    schema="cpt",
    policy_loss_fn="sft",
)
DPO = AlgorithmType(
    name="dpo",
    summary="Prefers the better of two given answers, measured against the reference model.",
    when_to_use="Pairs of a better and a worse answer, without rollouts.",
    paper="https://arxiv.org/abs/2305.18290",
    schema="dpo",
    can_balance_batch=False,
    policy_loss_fn="dpo",
    entropy_loss_fn="default",
)
KTO_ON_ROWS = AlgorithmType(
    name="kto",
    summary="Makes answers labelled good likelier, and bad ones less likely, than the reference.",
    when_to_use="Answers with a label each, good or bad, without pairs and without rollouts.",
    paper="https://arxiv.org/abs/2402.01306",
    schema="kto",
    can_balance_batch=False,
    policy_loss_fn="kto",
)
IPO = AlgorithmType(
    name="ipo",
    summary="DPO with a target for the margin of a pair, beyond which it pushes no further.",
    when_to_use="Few or clean pairs, which DPO overfits: both answers' probabilities collapse.",
    paper="https://arxiv.org/abs/2310.12036",
    schema="dpo",
    can_balance_batch=False,
    policy_loss_fn="ipo",
    entropy_loss_fn="default",
)
SIMPO = AlgorithmType(
    name="simpo",
    summary="Prefers the better answer by its mean log-probability, by a margin.",
    when_to_use="Pairs without memory for a reference model, where DPO makes answers longer.",
    paper="https://arxiv.org/abs/2405.14734",
    schema="dpo",
    can_balance_batch=False,
    policy_loss_fn="simpo",
    entropy_loss_fn="default",
)
ORPO = AlgorithmType(
    name="orpo",
    summary="Fine-tunes on the better answer and lowers the odds of the worse one at once.",
    when_to_use="A base model and preference pairs: one stage instead of SFT followed by DPO.",
    paper="https://arxiv.org/abs/2403.07691",
    schema="dpo",
    can_balance_batch=False,
    policy_loss_fn="orpo",
    entropy_loss_fn="default",
)

ON_ROWS = {"kto": KTO_ON_ROWS}
"""Algorithms of rollouts that train on rows of data, too, by their name."""
