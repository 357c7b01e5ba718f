"""Compares generated samples with those trained on, as text for the user."""

import math

from rich.markup import escape
from rich.table import Table

from trinity.api.v1 import query_pb2
from trinity.looking.harmless import harmless
from trinity.looking.samples import name_of_state

BENT = "differs from what was left out by more than chance"
BENT_TASKS = "some tasks lost more of their runs than by chance"
NO_MEAN = ""


def population_lines(stage: str, population: query_pb2.GetPopulationResponse) -> list[str]:
    """Describes how much of what was generated was trained on, and why the rest was not."""
    first, last = population.first_explore_step, population.last_explore_step
    steps = f"explore step {last}" if first == last else f"explore steps {first} to {last}"
    lines = [
        f"{stage}, {steps}: {population.num_runs:,} runs gave {population.num_generated:,} "
        f"samples, {population.num_trained:,} of them were trained on"
    ]
    for group in population.left_out:
        why = escape(harmless(group.reason)) or name_of_state(group.state)
        lines.append(f"  {group.count:,} were left out: {why}")
    return lines


def population_table(population: query_pb2.GetPopulationResponse) -> Table:
    """Compares the means and distributions of both."""
    table = Table("of all samples", "generated: mean", "trained: mean", "shift (0 to 1)", "")
    for comparison in population.comparisons:
        table.add_row(
            escape(harmless(comparison.name.replace("_", " "))),
            _mean(comparison.generated_mean),
            _mean(comparison.trained_mean),
            f"{comparison.shift:.3f}",
            _remark(comparison),
        )
    return table


def _remark(comparison: query_pb2.Comparison) -> str:
    if not comparison.is_significant:
        return ""
    return BENT_TASKS if comparison.name == "task" else BENT


def _mean(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else NO_MEAN
