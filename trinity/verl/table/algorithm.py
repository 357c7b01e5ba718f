"""Section `algorithm` of the veRL configuration, and related keys of the actor's section."""

from trinity.verl.row import KeyRow, combined_row, missing_rows, not_needed_rows, renamed_row

_ACTOR = "actor_rollout_ref.actor"

ROWS: tuple[KeyRow, ...] = (
    combined_row(
        "algorithm.adv_estimator",
        "algorithm.algorithm_type, algorithm.advantage_fn",
        "`gae` is `ppo`; arguments go to `algorithm.advantage_fn_args`",
    ),
    combined_row("algorithm.gamma", "algorithm.advantage_fn_args.gamma", "if the advantage has it"),
    combined_row("algorithm.lam", "algorithm.advantage_fn_args.lam", "if the advantage has it"),
    combined_row(
        "algorithm.norm_adv_by_std_in_grpo",
        "algorithm.advantage_fn",
        "`False` turns `grpo` into `dr_grpo`",
    ),
    combined_row(
        "algorithm.use_kl_in_reward",
        "algorithm.kl_penalty_fn",
        "`False` is `none`",
    ),
    combined_row("algorithm.kl_penalty", "algorithm.kl_penalty_fn", "`kl` is `k1`, `mse` is `k2`"),
    combined_row(
        "algorithm.kl_ctrl.kl_coef",
        "algorithm.kl_penalty_fn_args.kl_coef",
        "with `use_kl_in_reward` only",
    ),
    combined_row("algorithm.kl_ctrl.type", "algorithm.kl_penalty_fn_args.adaptive", "`adaptive`"),
    combined_row(
        "algorithm.kl_ctrl.horizon", "algorithm.kl_penalty_fn_args.horizon", "if adaptive"
    ),
    combined_row(
        "algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty_fn_args.target_kl", "if adaptive"
    ),
    combined_row(f"{_ACTOR}.use_kl_loss", "algorithm.kl_loss_fn", "`False` is `none`"),
    combined_row(f"{_ACTOR}.kl_loss_type", "algorithm.kl_loss_fn", "`kl` is `k1`, `mse` is `k2`"),
    combined_row(
        f"{_ACTOR}.kl_loss_coef", "algorithm.kl_loss_fn_args.kl_coef", "with `use_kl_loss` only"
    ),
    renamed_row(f"{_ACTOR}.entropy_coeff", "algorithm.entropy_loss_fn_args.entropy_coef"),
    combined_row(
        f"{_ACTOR}.policy_loss.loss_mode", "algorithm.policy_loss_fn", "`vanilla` is `ppo`"
    ),
    combined_row(f"{_ACTOR}.clip_ratio", "algorithm.policy_loss_fn_args.clip_range", ""),
    combined_row(f"{_ACTOR}.clip_ratio_low", "algorithm.policy_loss_fn_args.clip_range_low", ""),
    combined_row(f"{_ACTOR}.clip_ratio_high", "algorithm.policy_loss_fn_args.clip_range_high", ""),
    combined_row(f"{_ACTOR}.clip_ratio_c", "algorithm.policy_loss_fn_args.clip_ratio_c", ""),
    combined_row(f"{_ACTOR}.tau_pos", "algorithm.policy_loss_fn_args.tau_pos", "of `sapo`"),
    combined_row(f"{_ACTOR}.tau_neg", "algorithm.policy_loss_fn_args.tau_neg", "of `sapo`"),
    combined_row(
        f"{_ACTOR}.loss_agg_mode",
        "algorithm.loss_agg_mode",
        "veRL's `gspo` has its own and ignores it",
    ),
    combined_row(
        f"{_ACTOR}.use_token_level_loss",
        "algorithm.loss_agg_mode",
        "of DAPO's first code: `token-mean`, or else `seq-mean-token-mean`",
    ),
    combined_row(
        "algorithm.rollout_correction.bypass_mode",
        "algorithm.bypass_old_logprobs",
        "",
    ),
    combined_row(
        "algorithm.rollout_correction.loss_type",
        "algorithm.policy_loss_fn",
        "`ppo_clip` is `ppo`, `reinforce` is `gpg`, in bypass mode only",
    ),
    *(
        renamed_row(f"algorithm.rollout_correction.{name}", f"algorithm.rollout_correction.{name}")
        for name in (
            "rollout_is",
            "rollout_is_threshold",
            "rollout_is_batch_normalize",
            "rollout_rs",
            "rollout_rs_threshold",
            "rollout_token_veto_threshold",
        )
    ),
    combined_row(
        "algorithm.filter_groups.enable",
        "algorithm.advantage_fn_args.std_threshold",
        "`True` is 0.0: groups whose rewards are equal are replaced",
    ),
    combined_row("algorithm.filter_groups.max_num_gen_batches", "buffer.max_refill_rounds", ""),
    *not_needed_rows(
        "groups are compared by their rewards",
        "algorithm.filter_groups.metric",
    ),
    combined_row(
        "algorithm.use_pf_ppo", "algorithm.advantage_fn", "`True` turns `ppo` into `pf_ppo`"
    ),
    *(
        combined_row(
            f"algorithm.pf_ppo.{name}",
            f"algorithm.advantage_fn_args.{name}",
            "rows count as often as veRL draws them on average",
        )
        for name in ("reweight_method", "weight_pow")
    ),
    combined_row(
        f"{_ACTOR}.policy_loss.m2_budget",
        "algorithm.policy_loss_fn_args.m2_threshold",
        "of `m2po`",
    ),
    combined_row(
        f"{_ACTOR}.gvpo_beta", "algorithm.advantage_fn_args.beta", "of `gvpo`, as the recipe has it"
    ),
    *missing_rows(
        "there is no such option: leave it out, or write the advantage as a function of your own",
        "algorithm.pf_ppo.*",
        f"{_ACTOR}.policy_loss.*",
        "algorithm.rollout_correction.*",
    ),
)
