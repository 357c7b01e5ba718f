"""Padding, balance and speed of packed rows, and of prompts that rows share.

python -m benchmarks.packing [--repeats 3] [--rows 48] [--json FILE]

The first two figures are counted: tokens that a step computes over tokens that its rows have, and
the busiest of 8 ranks over the mean for 512 rows in groups of 8 of like lengths. The third is the
trainer's own step on packed rows over the same on padded ones, at lengths that are log-normal, and
the fourth its step on groups of 8 rows whose prompt is computed once over the same with each row
whole. Both are in processor time of one run, which other programs on the machine disturb less than
the clock; variants take turns, and the median of the ratios counts. They are held against the
tokens that are left out.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.gang import join_alone
from benchmarks.table import PerformanceClaim, print_claims
from services.trainer.collectives import Ranks
from services.trainer.learner.microbatches import (
    MicroBatchLimits,
    MicroBatchSplitter,
    computed_tokens,
    shareable,
)
from services.trainer.types import TrainBatch, TrainRow
from tests.unit.trainer.builders import make_plan
from trinity.config.plan.stage_plan import StagePlan

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 8192
CAP = 16_384
"""Tokens of a micro-batch: the default without GPUs."""
PROMPT = 40
LONG_PROMPT = 150
LONGEST = 1024
NUM_RANKS = 8
NUM_DEALT, GROUP_SIZE = 512, 8
SEED = 0
Figures = dict[str, object]
Settings = Mapping[str, object]
"""Keys of the section `trainer`."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/packing.json")
    arguments = parser.parse_args()
    groups = rows_of(lengths_of_groups())
    padded, packed = (
        computed_over_counted(groups, packed=is_packed) for is_packed in (False, True)
    )
    neighbours, dealt = (busiest_over_mean(groups, deals) for deals in (False, True))
    sizes = StepSizes(num_layers=arguments.layers, num_repeats=arguments.repeats)
    ranks = join_alone(num_threads=1)
    lengths = lengths_log_normal(arguments.rows)
    of_packing, packing = measure_packing(rows_of(lengths), ranks, sizes)
    of_sharing, sharing = measure_sharing(rows_of_prompts(lengths), ranks, sizes)
    claims = [
        PerformanceClaim("tokens computed over counted, packed", packed, 1.02, "<="),
        PerformanceClaim("busiest rank over mean, dealt by tokens", dealt, 1.03, "<="),
        of_packing,
        of_sharing,
    ]
    print(f"padded rows compute {padded:.3f} tokens for each that counts")
    print(f"neighbours make the busiest rank {neighbours:.3f} of the mean")
    print_claims(claims)
    record = {
        "padded_computed_over_counted": padded,
        "neighbours_busiest_over_mean": neighbours,
        **packing,
        "shared": sharing,
        "num_threads": torch.get_num_threads(),
        "claims": [claim.as_json() for claim in claims],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def measure_packing(
    rows: Sequence[TrainRow], ranks: Ranks, sizes: "StepSizes"
) -> tuple[PerformanceClaim, Figures]:
    """Times a step on packed rows and on padded ones."""
    settings = ({"use_remove_padding": True}, {"use_remove_padding": False})
    times = step_times(settings, rows, ranks, sizes)
    aim = 1.05 / computed_over_counted(rows, packed=False)
    return PerformanceClaim("packed step over padded step", times.ratio, aim, "<="), {
        "num_parameters": times.num_parameters,
        "tokens_of_the_step": sum(row.length for row in rows),
        "step_processor_seconds": {"packed": times.better, "padded": times.other},
    }


def measure_sharing(
    rows: Sequence[TrainRow], ranks: Ranks, sizes: "StepSizes"
) -> tuple[PerformanceClaim, Figures]:
    """Times a step with each prompt once and with each row whole."""
    settings = ({"use_prefix_grouper": True}, {"use_prefix_grouper": False})
    times = step_times(settings, rows, ranks, sizes)
    least = once_over_whole(rows)
    name = "step with prompts once over step with each row whole"
    return PerformanceClaim(name, times.ratio, 1.1 * least, "<="), {
        "tokens_of_the_step": sum(row.length for row in rows),
        "tokens_with_prompts_once_over_all": least,
        "step_processor_seconds": {"once": times.better, "whole": times.other},
    }


def lengths_log_normal(num: int) -> list[int]:
    """Answers of a step, most of them short and some long."""
    generator = np.random.default_rng(SEED)
    drawn = generator.lognormal(np.log(150), 0.9, num).astype(int)
    return [int(length) for length in np.clip(drawn, 16, LONGEST - PROMPT)]


def lengths_of_groups() -> list[int]:
    """Answers to one task are about as long as one another."""
    generator = np.random.default_rng(SEED)
    middles = generator.lognormal(np.log(150), 0.9, NUM_DEALT // GROUP_SIZE).repeat(GROUP_SIZE)
    drawn = (middles * generator.lognormal(0, 0.15, NUM_DEALT)).astype(int)
    return [int(length) for length in np.clip(drawn, 16, LONGEST - PROMPT)]


def rows_of(lengths: Sequence[int]) -> list[TrainRow]:
    """Random rows with answers of these lengths."""
    generator = np.random.default_rng(SEED)
    return [
        TrainRow(
            position=position,
            tokens=generator.integers(2, VOCABULARY, PROMPT + length).astype(np.int32),
            prompt_length=PROMPT,
            mask=np.ones(length, dtype=np.bool_),
            rollout_logprobs=np.full(length, -9.0, dtype=np.float32),
            advantages=np.full(length, generator.normal(), dtype=np.float32),
        )
        for position, length in enumerate(lengths)
    ]


def rows_of_prompts(lengths: Sequence[int]) -> list[TrainRow]:
    """The same with a prompt of middle length for each group of rows."""
    generator = np.random.default_rng(SEED + 1)
    rows = []
    for row in rows_of(lengths):
        if row.position % GROUP_SIZE == 0:
            prompt = generator.integers(2, VOCABULARY, LONG_PROMPT).astype(np.int32)
        tokens = np.concatenate([prompt, row.tokens[PROMPT:]])
        rows.append(replace(row, tokens=tokens, prompt_length=LONG_PROMPT))
    return rows


def once_over_whole(rows: Sequence[TrainRow]) -> float:
    """Tokens with each prompt but its last token once, over all."""
    groups = {shareable(row): row.prompt_length - 1 for row in rows}
    answers = sum(row.response_length + 1 for row in rows)
    return (answers + sum(groups.values())) / sum(row.length for row in rows)


class AloneInTurn(Ranks):
    """A rank that is asked what it would do, without its fellows."""

    def all_reduce_max(self, value: float) -> float:
        return value


def _parts(rows: Sequence[TrainRow], ranks: Ranks, *, packed: bool, deals: bool) -> list[list[int]]:
    splitter = MicroBatchSplitter(
        ranks=ranks,
        limits=MicroBatchLimits(max_tokens=CAP),
        keep_order=False,
        deals_tokens=deals,
    )
    mask_BT = np.ones((len(rows), 1), dtype=np.bool_)
    return [list(part) for part, _ in splitter.parts(rows, mask_BT, packed=packed)]


def computed_over_counted(rows: Sequence[TrainRow], *, packed: bool) -> float:
    """Tokens that one rank computes, over those of its rows."""
    parts = _parts(rows, AloneInTurn(0, 1), packed=packed, deals=packed)
    computed = sum(computed_tokens(rows, part, packed=packed) for part in parts)
    return computed / sum(row.length for row in rows)


def busiest_over_mean(rows: Sequence[TrainRow], deals: bool) -> float:
    """Tokens of the rank that has most, over the mean."""
    loads = [
        sum(rows[number].length for part in parts for number in part)
        for parts in (
            _parts(rows, AloneInTurn(rank, NUM_RANKS), packed=True, deals=deals)
            for rank in range(NUM_RANKS)
        )
    ]
    return max(loads) / statistics.mean(loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Processor seconds of the steps, in turn."""

    num_parameters: int
    better: list[float]
    other: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbours in time."""
        return statistics.median(a / b for a, b in zip(self.better, self.other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """The model's layers, and the steps of each variant that count."""

    num_layers: int
    num_repeats: int


def step_times(
    variants: tuple[Settings, Settings], rows: Sequence[TrainRow], ranks: Ranks, sizes: StepSizes
) -> StepTimes:
    """Times the trainer's step with either of two settings."""
    from services.trainer.learner.learner import Learner

    batch = TrainBatch(step=1, rows=rows, metrics={}, replayed=False)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        num_parameters = _write_model(model, sizes.num_layers)
        learners = [
            Learner(plan=_plan(model, settings), model_directory=model, ranks=ranks)
            for settings in variants
        ]
        seconds: list[list[float]] = [[], []]
        for _ in range(sizes.num_repeats + 1):
            for taken, learner in zip(seconds, learners, strict=True):
                begin = time.process_time()
                learner.train_step(batch, 1e-6)
                taken.append(time.process_time() - begin)
    return StepTimes(
        num_parameters=num_parameters,
        better=seconds[0][1:],  # the first of each warms up
        other=seconds[1][1:],
    )


def _plan(model: Path, settings: Settings) -> StagePlan:
    return make_plan(
        model,
        {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"},
        {"max_token_len_per_gpu": CAP, **settings},
    )


def _write_model(directory: Path, num_layers: int) -> int:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)
    return int(sum(parameter.numel() for parameter in model.parameters()))


if __name__ == "__main__":
    main()
