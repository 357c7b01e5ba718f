"""Shares out GPUs between engines and ranks: the rest of a machine trains, or whole machines."""

from collections.abc import Iterator
from dataclasses import dataclass

from trinity.verl.rules.running import ULYSSES, sequence_parallel_size
from trinity.verl.values import as_count
from trinity.verl.work import ACTOR, Conversion

_GROUP = f"{ACTOR}.fsdp_config.fsdp_size"
_TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
_SHARE = 4
"""One of this many GPUs, or of this many machines, rolls out, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class VerlMachines:
    """Machines and their GPUs."""

    nodes: int
    gpus: int
    """GPUs of each machine."""

    @property
    def total(self) -> int:
        """GPUs of all machines."""
        return self.nodes * self.gpus

    def filled_by(self, num_gpus: int) -> int:
        """Returns the machines that hold this number of GPUs."""
        return -(-num_gpus // self.gpus) if self.gpus else 0

    def spans(self, num_gpus: int) -> bool:
        """Returns True if an engine of `num_gpus` GPUs spans several machines."""
        return self.nodes > 1 and num_gpus > self.gpus > 0

    def rank_counts(self, explorer_gpus: int, explorers: int) -> Iterator[int]:
        """Yields the numbers of ranks that explorers leave room for, the largest first."""
        whole = self.nodes - explorers * self.filled_by(explorer_gpus)
        yield from (machines * self.gpus for machines in range(whole, 1, -1))
        left = self.total - explorers * explorer_gpus
        yield from range(min(left, self.gpus), 0, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDivision:
    """Groups into which ranks must divide, and the rows that a step has for them."""

    sequences: int
    """Ranks that share a sequence."""
    weights: int
    """Ranks that share the weights; 0 or less is all."""
    rows: int
    """Rows of a train step."""

    def allows(self, ranks: int) -> bool:
        """Returns whether ranks divide into groups that all have rows."""
        is_grouped = self.weights <= 0 or ranks <= self.weights or ranks % self.weights == 0
        is_fed = ranks <= self.rows * self.sequences
        return is_grouped and is_fed and ranks % self.sequences == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDemand:
    """GPUs that rollout asks for, before training does."""

    per_engine: int
    """GPUs of an engine."""
    others: int
    """GPUs of the engines of other models, judges or teachers."""
    own: int
    """GPUs that veRL, too, keeps for rollout; 0 if it does not."""
    engines: int | None
    """Engines of an explorer that the user asks for."""

    def gpus(self, engines: int) -> int:
        """Returns the GPUs of an explorer with this number of engines."""
        return engines * self.per_engine + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShares:
    """Engines, explorers and ranks."""

    engines: int
    """Engines of the policy in an explorer."""
    explorers: int
    ranks: int
    """0 if rollout takes all GPUs."""
    sequences: int
    """Ranks that share a sequence."""


def divide_gpus(work: Conversion, machines: VerlMachines, demand: RolloutDemand) -> GpuShares:
    """Returns the shares in which all ranks have work.

    Fewer ranks share a sequence than in veRL if no number of ranks divides otherwise: that changes
    memory alone.
    """
    counts = list(_engine_counts(machines, demand))
    for size in _divisors(sequence_parallel_size(work)):
        division = _division(work, size)
        found = [_shares(machines, demand, engines, division) for engines in counts]
        allowed = [shares for shares in found if shares is not None]
        whole = (shares for shares in allowed if _uses_all(machines, demand, shares))
        if (shares := next(whole, found[0])) is not None:
            return shares
    return GpuShares(engines=counts[0], explorers=1, ranks=0, sequences=1)


def put_ranks(work: Conversion, ranks: int, left: int) -> None:
    """Writes the number of ranks where it is not that of all GPUs which an explorer leaves."""
    if ranks and ranks != left:
        work.put("trainer.rank_num", ranks, "whole machines or groups, each with rows of a step")


def limit_supervised_ranks(work: Conversion, machines: VerlMachines, rows: int) -> int:
    """Limits ranks to those that a step feeds; returns the number of ranks."""
    division = RankDivision(sequences=sequence_parallel_size(work), weights=0, rows=rows)
    counts = machines.rank_counts(0, 0)
    ranks = next((count for count in counts if division.allows(count)), machines.total)
    put_ranks(work, ranks, machines.total)
    return ranks


def put_sequence_sharing(work: Conversion, size: int) -> None:
    """Writes a number of ranks that share a sequence below veRL's, and more tokens for each."""
    asked = sequence_parallel_size(work)
    if size == asked:
        return
    for key in ("", "fsdp_config."):
        work.settings.take(f"{ACTOR}.{key}ulysses_sequence_parallel_size")
    work.put(ULYSSES, size, f"veRL's {asked}, lowered to divide the ranks")
    tokens = work.settings.peek(_TOKENS)
    if isinstance(tokens, int):
        work.settings.take(_TOKENS)
        more = tokens * asked // size
        work.put("trainer.max_token_len_per_gpu", more, f"{_TOKENS}={tokens} x {asked} / {size}")
    work.report.advice.append(
        f"{asked} GPUs that share a sequence divide no number of ranks that rollout leaves: "
        f"`{ULYSSES}` is {size}. Steps mean the same, and a GPU holds {asked // size} times the "
        "tokens: `trinity config plan` says whether they fit, and more GPUs allow veRL's"
    )


def _engine_counts(machines: VerlMachines, demand: RolloutDemand) -> Iterator[int]:
    """Yields numbers of engines of an explorer, the wanted first.

    An explorer is on one machine: of several it has a whole one, of one a quarter or more. Where
    an engine is larger than a machine, the explorer is that one engine.
    """
    if demand.engines is not None:
        yield demand.engines
    elif demand.own or machines.nodes > 1:
        most = min(demand.own or machines.gpus, machines.gpus - demand.others)
        yield max(most // demand.per_engine, 1)
    else:
        first = max(machines.total // _SHARE // demand.per_engine, 1)
        yield from range(first, max(machines.total // demand.per_engine, first) + 1)


def _shares(
    machines: VerlMachines, demand: RolloutDemand, engines: int, division: RankDivision
) -> GpuShares | None:
    """Returns the shares with the most ranks; None if no number of ranks is allowed."""
    gpus = demand.gpus(engines)
    each = max(machines.filled_by(gpus), 1)
    wanted = machines.filled_by(demand.own) if demand.own else machines.nodes // _SHARE
    is_only_one = machines.spans(demand.per_engine)
    explorers = 1 if is_only_one else max(wanted // each, 1)
    for ranks in machines.rank_counts(gpus, explorers):
        if division.allows(ranks):
            free = machines.nodes - machines.filled_by(ranks)
            more = max(free // each, 1) if machines.nodes > 1 and not is_only_one else 1
            return GpuShares(
                engines=engines,
                explorers=explorers if demand.own else more,
                ranks=ranks,
                sequences=division.sequences,
            )
    return None


def _uses_all(machines: VerlMachines, demand: RolloutDemand, shares: GpuShares) -> bool:
    return machines.nodes == 1 and shares.ranks == machines.total - demand.gpus(shares.engines)


def _division(work: Conversion, sequences: int) -> RankDivision:
    mini = as_count(work.settings.peek(f"{ACTOR}.ppo_mini_batch_size"), 256)
    repeats = as_count(work.settings.peek("actor_rollout_ref.rollout.n"), 1)
    group = work.settings.peek(_GROUP)
    return RankDivision(
        sequences=sequences,
        weights=group if isinstance(group, int) else 0,
        rows=mini * repeats,
    )


def _divisors(size: int) -> list[int]:
    """Returns the divisors of a size, the largest first."""
    return [divisor for divisor in range(size, 0, -1) if size % divisor == 0]
