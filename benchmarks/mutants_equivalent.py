"""Mutants that no test can tell from sound code, each with the reason."""

from collections.abc import Mapping

_TWO_AXES = "the last of two axes is axis 1"
_COPY = "a copy has the same values"
_SAME_MOMENT = "the clock reads the very moment by chance alone"
_SLOWER = "the whole check gives the same result"
_ANY_CONSTANT = "any value that all share, and that no call has"
_NO_NUMBER = "any number below 0 is refused"
_EQUAL_DRAW = "a draw equals the share once in 2**53"
_AS_MANY = "there are as many of each"
_NO_ANSWER = "tokens of no answer are never trained"
EQUIVALENT: Mapping[str, str] = {
    "advantage.groups.draw_copies: donors_D = np.flatnonzero(~is_left_out_G & "
    "(samples.group_sizes > 0)) [0 to 1]": "groups of one are always left out themselves",
    "advantage.maxrl._over_the_mean: scales_N = np.where(is_used_G, means_G, 1.0)[samples.groups] "
    "[1.0 to 2.0]": "where the scale is not the mean the advantage is 0 in any case",
    "advantage.samples.group_means: means_G: FloatVector = first_G + sums_G / "
    "np.maximum(self.group_sizes, 1) [1 to 2]": "differences within a group of one add up to 0",
    "aggregation.token_weights: return weights_BT / (num_sequences * "
    "weights_BT.sum(-1, keepdim=True).clamp(min=1)) [without USub]": _TWO_AXES,
    "policy_loss.contributions._rows_contribution: weights_B = weights_B * (logs_BT.sum(-1) / "
    "rows.mask_BT.sum(-1).clamp(min=1)).exp() [without USub]": _TWO_AXES,
    "policy_loss.mix_chord.mix_chord: mu_B = torch.full(inputs.mask_BT.shape[:1], mu, "
    "device=inputs.mask_BT.device) [1 to 2]": "a mean over tokens of what all share is theirs too",
    "policy_loss.pairs._row_sums: return torch.where(inputs.mask_BT, values_BT, 0.0).sum(-1) "
    "[without USub]": _TWO_AXES,
    "services.trainer.batch_rows.with_mismatched: for row, other in zip(rows, others, strict=True) "
    "[True to False]": "there are as many answers as rows",
    "services.trainer.data.batches.__init__: self._executor = ThreadPoolExecutor(1, "
    '"next-batch") if fetches_ahead else None [1 to 2]': "one batch is fetched at a time",
    "services.trainer.data.batches._wait_for: is_due = now >= due [GtE to Gt]": _SAME_MOMENT,
    "services.trainer.data.batches._wait_for: if time.monotonic() >= deadline and (is_due or "
    "due > deadline): [GtE to Gt]": _SAME_MOMENT,
    "services.trainer.data.encoders.__call__: for cut, side in zip(sequences, sides, strict=True) "
    "[True to False]": "an encoder gives one sequence, or two",
    "services.trainer.backend.expert_replay._num_layers: return max((int(layer[1]) for layer in "
    "layers if layer is not None), default=-1) + 1 [without USub]": (
        "a model without layers has no gates"
    ),
    "services.trainer.backend.expert_replay._weights: weights_Tk = torch.softmax("
    "logits_TE.float(), dim=-1).gather(-1, experts_Tk) [without USub]": _TWO_AXES,
    "services.trainer.learner.advantages._penalised: return KlPenalty(rewards_BT=rewards_NT, "
    "kl=0.0, metrics={}) [0.0 to 1.0]": "a divergence without a penalty is not read",
    'services.trainer.learner.advantages._reward_metrics: "critic/rewards", rewards_NT.sum(-1) '
    "[without USub]": _TWO_AXES,
    "services.trainer.learner.learner.row_statistics: numbers = np.flatnonzero("
    "prepared.mask_BT.any(-1) & ~prepared.is_expert_B) [without USub]": _TWO_AXES,
    "services.trainer.learner.microbatches._share: if shares_prompts and self._is_free and "
    "num_shares > 1: [Gt to GtE]": "the share of one rank is put together by prompts in any case",
    "services.trainer.learner.microbatches.parts: if packed and self._is_free and len(batches) < "
    "num_parts: [Lt to LtE]": "as many parts are made once more, of the same rows",
    "services.trainer.learner.prepared_batch.totals: mask_BT.sum(-1), max_response_tokens="
    "max_response_tokens, is_expert_B=self.is_expert_B [without USub]": _TWO_AXES,
    'services.trainer.learner.roles.__call__: values_BT=torch.where(mask_NC, model_output["values"]'
    ", 0.0), [0.0 to 1.0]": "values of tokens that are not trained on count nowhere",
    "services.trainer.learner.verl_calls._row_tensors: temperatures = [row.temperature for row in "
    "rows] or [1.0] * num_rows [1.0 to 2.0]": "nothing is learned from a row of no batch",
    "token_advantage.gvpo.gvpo: masked(batch.logprobs_BT - batch.rollout_logprobs_BT, "
    "batch.mask_BT).sum(-1) [without USub]": _TWO_AXES,
    "token_advantage.gvpo.gvpo: scale_U = np.where(sizes_U > 1, beta * sizes_U / "
    "np.maximum(sizes_U - 1, 1), 0.0) [Gt to GtE]": "a unit alone differs from its mean by 0",
    "token_advantage.kto.kto: has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0 "
    "[sum to mean]": "the mean of a mask is above 0 where its sum is",
    "token_advantage.kto.kto: has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0 "
    "[without USub]": _TWO_AXES,
    "token_advantage.kto.kto: scores_U, changes_U = units.means_U(batch.scores_B), "
    "units.sums_U(gaps_BT.sum(-1)) [without USub]": _TWO_AXES,
    "token_advantage.masked.row_means: means_B: FloatVector = masked(values_BT, mask_BT).sum(-1) "
    "/ (mask_BT.sum(-1) + EPSILON) [without USub]": _TWO_AXES,
    "token_advantage.online_dpo.online_dpo: changes_U = units.sums_U(gaps_BT.sum(-1)) "
    "[without USub]": _TWO_AXES,
    "token_advantage.recurrence.next_values: padded = np.concatenate([np.where(mask_BT, "
    "values_BT, 0.0), np.zeros((num_rows, 1))], axis=1) [1 to 2]": (
        "the second column of zeros is not read"
    ),
    "token_advantage.rloo._less_others: scale_U = np.where(sizes_U > 1, sizes_U / "
    "np.maximum(sizes_U - 1, 1), 1.0) [Gt to GtE]": "one over max(0, 1) is 1 as well",
    "token_advantage.token_batch.scores_B: scores: FloatVector = self.rewards_BT.sum(-1) "
    "[without USub]": _TWO_AXES,
    "token_advantage.units.means_U: means_U: FloatVector = first_U + differences_U / "
    "np.maximum(self.sizes_U, 1) [1 to 2]": "differences within a unit of one row add up to 0",
    "trinity.data.codec._set_sequence: logprobs = sequence.rollout_logprobs.astype(np.float32, "
    "copy=False) [False to True]": _COPY,
    "trinity.data.codec._set_sequence: mask = sequence.action_mask.astype(np.bool_, copy=False) "
    "[False to True]": _COPY,
    "trinity.data.codec._set_sequence: tokens = sequence.tokens.astype(np.int32, copy=False) "
    "[False to True]": _COPY,
    "trinity.data.codec._typed: return data.astype(dtype, copy=False) [False to True]": _COPY,
    "trinity.data.codec.raw_bytes_if_valid: if not is_plain or (tensor.dtype == Tensor.DTYPE_BOOL "
    'and data.translate(None, b"\\0\\1")): [and to or, or back]': _SLOWER,
    "trinity.data.codec.raw_bytes_if_valid: if not is_plain or (tensor.dtype == Tensor.DTYPE_BOOL "
    'and data.translate(None, b"\\0\\1")): [without Not]': _SLOWER,
    "trinity.data.codec.set_tensor: tensor.data = data.astype(little, copy=False).tobytes() "
    "[False to True]": _COPY,
    "trinity.data.codec.tensor_from_proto: and np.frombuffer(tensor.data, np.uint8).max(initial=0) "
    "> 1 [0 to 1]": "neither 0 nor 1 is above 1",
    "trinity.data.codec_checks._plain_lengths: if length is None or not 1 <= message.prompt_length "
    "<= length: [1 to 2]": _SLOWER,
    "trinity.workflows.answers._by_text: edges = [-1, *(place for place in places if place in "
    "found), len(messages)] [1 to 2]": "no message stands before the first",
    "trinity.workflows.experience_builder.distribution_of: logprobs=0, [0 to 1]": _ANY_CONSTANT,
    "trinity.workflows.experience_builder.distribution_of: max_tokens=0, [0 to 1]": _ANY_CONSTANT,
    "trinity.workflows.experience_builder.distribution_of: seed=0, [0 to 1]": _ANY_CONSTANT,
    "trinity.workflows.experience_builder.distribution_of: top_k=sampling.top_k if sampling.top_k "
    "> 0 else -1, [1 to 2]": _ANY_CONSTANT,
    "trinity.workflows.frozen_lake_workflow.move: direction = DIRECTIONS["
    "(DIRECTIONS.index(direction) + turn) % 4] [Add to Sub]": "both sides are drawn alike",
    "trinity.workflows.frozen_lake_workflow.random_rows: tiles = [ICE if dice.random() < "
    "ice_share else HOLE for _ in range(size * size)] [Lt to LtE]": (_EQUAL_DRAW),
    "trinity.workflows.sudoku_workflow._numbers: yield -1 [1 to 2]": _NO_NUMBER,
    "trinity.workflows.sudoku_workflow._numbers: yield from [int(d) for d in part] if "
    'part.isdigit() else [0 if part == "." else -1] [1 to 2]': _NO_NUMBER,
    "trinity.workflows.sudoku_workflow.random_board: cells = [[numbers[(box * (r % box) + r // box "
    "+ c) % size] for c in columns] for r in rows] [Add to Sub]": "another board that is valid",
    "trinity.workflows.sudoku_workflow.read_board: is_square = size * size == len(numbers) and "
    "isqrt(size) ** 2 == size and size > 1 [1 to 2]": "2 is no square",
    "trinity.workflows.hosting._by_run: for experience, run in zip(made, "
    "self._places(name, made), strict=True): [True to False]": "there is a run for each sample",
    "trinity.workflows.hosting._hosted: for wrapper, model in zip(found.auxiliary, "
    "self.auxiliary_models, strict=True): [True to False]": _AS_MANY,
    "trinity.rft.workflows.ruler._trains_judging: return "
    'random.Random(f"{self.task.batch_id}/{self.task.task_id}").random() < share [Lt to LtE]': (
        _EQUAL_DRAW
    ),
    "trinity.workflows.turns._lengths: lengths = [[0] * (width + 1)] [1 to 2]": (
        "the second 0 behind a row is not read"
    ),
    "trinity.workflows.turns._merge_array: kind = offsets[0][1].arrays[name].data [0 to 1]": (
        "turns are joined only where their arrays are of one kind"
    ),
    "trinity.workflows.verl_agent_workflow.split_by_distribution: way_R = "
    "np.full(sequence.response_length, -1) [1 to 2]": _NO_ANSWER,
    "trinity.workflows.verl_agent_workflow.split_by_distribution: way_R = "
    "np.full(sequence.response_length, -1) [without USub]": _NO_ANSWER,
}
"""By `Mutant.name`."""
