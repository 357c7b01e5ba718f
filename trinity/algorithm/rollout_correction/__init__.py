"""Corrections for engines or weights that differ from the policy in training.

The behaviour policy (rollout) generated the tokens; the proximal one is the trainer's own before
the step. The gap between them is corrected by factors on the losses of tokens (truncated importance
sampling, IcePop, the weights of decoupled PPO) or by leaving tokens and rows out. Names, meanings
and metrics are those of verl's rollout correction. https://richardli.xyz/rl-collapse,
https://arxiv.org/abs/2505.24298
"""
