"""Seeds repeat with the run and with nothing else."""

from dataclasses import replace

from services.explorer.rollout.workflow_factory import SEED_BITS, SeedInputs

BASE = SeedInputs(
    experiment_seed=7,
    stage="main",
    kind="train",
    taskset="taskset",
    explore_step=3,
    position=1,
    run=0,
)


def test_the_same_run_gets_the_same_seeds_again() -> None:
    assert replace(BASE).seed_of_call(2) == BASE.seed_of_call(2)


def test_every_part_of_a_run_changes_its_seeds() -> None:
    others = [
        replace(BASE, experiment_seed=8),
        replace(BASE, stage="other"),
        replace(BASE, kind="eval"),
        replace(BASE, taskset="other"),
        replace(BASE, explore_step=4),
        replace(BASE, position=2),
        replace(BASE, run=1),
    ]
    seeds = {base.seed_of_call(0) for base in [BASE, *others]} | {BASE.seed_of_call(1)}
    assert len(seeds) == len(others) + 2


def test_parts_do_not_run_into_one_another() -> None:
    assert replace(BASE, position=11, run=1).seed_of_call(0) != replace(
        BASE, position=1, run=11
    ).seed_of_call(0)


def test_seeds_fit_into_63_bits_and_use_them() -> None:
    seeds = [BASE.seed_of_call(call) for call in range(200)]
    assert all(0 <= seed < 1 << SEED_BITS for seed in seeds)
    assert max(seeds) > 1 << (SEED_BITS - 1)
