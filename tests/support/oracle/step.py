"""One update of a batch: its terms and their gradient, one row after the other, in float64."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from tests.support.oracle import losses
from tests.support.oracle.advantages import PerToken, TokenAdvantage
from tests.support.oracle.losses import ZERO, RowLoss, Scalar, Token, aggregate, number
from tests.support.oracle.rows import Answer, Row

Lines = list[list[Token]]
"""The trained tokens of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The weights at the begin of the step."""

    policy: Path
    reference: Path
    critic: Mapping[str, torch.Tensor] | None = None
    teacher: Path | None = None

    def language_model(self, directory: Path) -> torch.nn.Module:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        return model.eval()

    def value_model(self) -> torch.nn.Module:
        assert self.critic is not None
        config = AutoConfig.from_pretrained(
            self.policy, num_labels=1, classifier_dropout=0.0, attn_implementation="eager"
        )
        model = AutoModelForTokenClassification.from_config(config, dtype=torch.float64).eval()
        model.load_state_dict(self.critic, strict=False)
        return model.double()


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is descended: policy + coefficient * divergence - coefficient * entropy."""

    row_loss: RowLoss = losses.ppo
    pair_loss: Callable[..., Scalar] | None = None
    batch_loss: Callable[[list[Answer]], Scalar] | None = None
    expert_loss: RowLoss | None = None
    expert_share: float = 0.0
    advantage: TokenAdvantage | None = None
    mode: str = "token-mean"
    longest: int = 16
    """Divisor of seq-mean-token-sum-norm."""
    old_is_policy: bool = False
    """Ratios are to the policy before the step, not to the one that sampled."""
    largest_correction: float | None = None
    """Weighs policy losses by the ratio of these two, at most this."""
    threshold: float | None = None
    """Of m2po."""
    kl: str = "none"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    penalty: str = "none"
    penalty_coef: float = 0.0
    returns: TokenAdvantage | None = None
    cliprange_value: float = 0.5
    distillation_coef: float = 0.0
    distillation: str = "reverse"
    balance_coef: float = 0.0
    """Of the gates' losses, for mixtures of experts."""
    z_coef: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Terms by name, and gradients by the parameter's."""

    terms: Mapping[str, float]
    actor: Mapping[str, torch.Tensor]
    critic: Mapping[str, torch.Tensor]


def step(rows: Sequence[Row], models: Models, objective: Objective) -> Outcome:
    """Computes all that one update is made of."""
    policy = models.language_model(models.policy)
    reference = models.language_model(models.reference)
    teacher = models.language_model(models.teacher) if models.teacher else None
    critic = models.value_model() if models.critic is not None else None
    answers = [_answer(row, policy, reference, critic, teacher, objective) for row in rows]
    targets = objective.returns(answers) if objective.returns is not None else []
    terms = _terms(answers, objective)
    (terms["loss"] + _of_gates(rows, policy, objective)).backward()
    value = ZERO
    if targets:
        value = _value_loss(answers, targets, objective)
        value.backward()
    return Outcome(
        {name: number(term) for name, term in terms.items()} | {"vf_loss": number(value)},
        _gradients(policy),
        {} if critic is None else _gradients(critic),
    )


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _distributions(model: torch.nn.Module, row: Row, temperature: float) -> torch.Tensor:
    """Log-probabilities of all words before each token after the prompt."""
    logits = model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0]
    of_tokens: torch.Tensor = logits[row.prompt_length - 1 : -1] / temperature
    return of_tokens.log_softmax(-1)


def _answer(
    row: Row,
    policy: torch.nn.Module,
    reference: torch.nn.Module,
    critic: torch.nn.Module | None,
    teacher: torch.nn.Module | None,
    objective: Objective,
) -> Answer:
    words = row.tokens[row.prompt_length :]
    every = _distributions(policy, row, row.temperature)
    with torch.no_grad():
        others = _distributions(reference, row, row.temperature)
        cold = _distributions(policy, row, 1.0)
    lp = [every[t, words[t]] for t in row.places]
    rollout = [row.rollout[t] for t in row.places]
    values = [ZERO for _ in row.places]
    if critic is not None:
        output = critic(input_ids=torch.tensor([row.tokens])).logits[0, :, 0]
        values = [output[row.prompt_length - 1 + t] for t in row.places]
    answer = Answer(
        row=row,
        lp=lp,
        entropy=[-(every[t].exp() * every[t]).sum() for t in row.places],
        old=[number(x) for x in lp] if objective.old_is_policy else rollout,
        rollout=rollout,
        student=[number(cold[t, words[t]]) for t in row.places],
        teacher=[row.teacher[t] for t in row.places] if row.teacher else [],
        reference=[number(others[t, words[t]]) for t in row.places],
        values=values,
        rewards=[0.0] * (len(lp) - 1) + [row.reward] if lp else [],
    )
    if objective.penalty != "none":
        of_tokens = zip(answer.rewards, answer.old, answer.reference, strict=True)
        answer.rewards = [
            reward
            - objective.penalty_coef
            * number(losses.divergence(objective.penalty, torch.tensor(old).double(), to, old))
            for reward, old, to in of_tokens
        ]
    if teacher is not None:
        with torch.no_grad():
            told = _distributions(teacher, row, row.temperature)
        first, second = (every, told) if objective.distillation == "reverse" else (told, every)
        apart = (first.exp() * (first - second)).sum(-1)
        answer.apart = sum((apart[t] for t in row.places), start=ZERO)
    return answer


def _with_advantages(
    answers: list[Answer], objective: Objective
) -> list[tuple[Answer, list[Token]]]:
    """Leaves out rows that have none."""
    advantages: PerToken = [[answer.row.advantage] * len(answer.lp) for answer in answers]
    if objective.advantage is not None:
        advantages = objective.advantage(answers)
    return [
        (
            answer,
            [Token(*t) for t in zip(answer.lp, answer.old, values, answer.reference, strict=True)],
        )
        for answer, values in zip(answers, advantages, strict=True)
        if values and not math.isnan(values[0])
    ]


def _terms(answers: list[Answer], objective: Objective) -> dict[str, Scalar]:
    mode, longest = objective.mode, objective.longest
    known = _with_advantages(answers, objective)
    answers, lines = [answer for answer, _ in known], [line for _, line in known]
    weights = [answer.row.weight for answer in answers]
    policy = _policy_loss(answers, lines, weights, objective)
    usual = [not (answer.row.is_expert and objective.expert_loss) for answer in answers]
    of_usual = [a for a, counts in zip(answers, usual, strict=True) if counts]
    entropy = aggregate(
        [a.entropy for a in of_usual], mode, longest, [a.row.weight for a in of_usual]
    )
    num_tokens = sum(len(answer.lp) for answer in answers)
    terms = {"policy": policy, "entropy": entropy}
    terms["mean entropy"] = sum((sum(a.entropy, start=ZERO) for a in answers), start=ZERO)
    terms["mean entropy"] = terms["mean entropy"] / num_tokens
    total = policy - objective.entropy_coef * entropy
    if objective.kl != "none":
        kl = [
            [losses.divergence(objective.kl, *token) for token in _kl_tokens(answer)]
            for answer in answers
        ]
        terms["kl_loss"] = aggregate(kl, mode, longest, weights)
        terms["mean kl"] = sum((sum(row, start=ZERO) for row in kl), start=ZERO) / num_tokens
        total = total + objective.kl_coef * terms["kl_loss"]
    if objective.distillation_coef:
        apart = [w * a.apart for w, a in zip(weights, answers, strict=True) if a.apart is not None]
        terms["distillation_loss"] = sum(apart, start=ZERO) / num_tokens
        all_apart = [a.apart for a in answers if a.apart is not None]
        terms["mean distillation"] = sum(all_apart, start=ZERO) / num_tokens
        total = total + objective.distillation_coef * terms["distillation_loss"]
    return {**terms, "loss": total}


def _kl_tokens(answer: Answer) -> list[tuple[Scalar, float, float]]:
    return list(zip(answer.lp, answer.reference, answer.old, strict=True))


def _policy_loss(
    answers: list[Answer], lines: Lines, weights: list[float], objective: Objective
) -> Scalar:
    if objective.batch_loss is not None:
        return objective.batch_loss(answers)
    if objective.pair_loss is not None:
        pairs = zip(lines[::2], lines[1::2], weights[::2], weights[1::2], strict=True)
        found = [(w + v) / 2 * objective.pair_loss(one, other) for one, other, w, v in pairs]
        return sum(found, start=ZERO) / len(found)
    row_loss = objective.row_loss
    if objective.threshold is not None:
        largest = losses.m2po_range(lines, objective.threshold)
        row_loss = partial(losses.m2po, largest=largest)
    if objective.expert_loss is None:
        found_rows = [row_loss(line) if line else [] for line in lines]
        if objective.largest_correction is not None:
            found_rows = _corrected(found_rows, answers, objective.largest_correction)
        return aggregate(found_rows, objective.mode, objective.longest, weights)
    total = ZERO
    for is_expert, loss, share, mode in (
        (False, row_loss, 1 - objective.expert_share, objective.mode),
        (True, objective.expert_loss, objective.expert_share, "token-mean"),
    ):
        own = [n for n, answer in enumerate(answers) if answer.row.is_expert == is_expert]
        kind = [loss(lines[n]) for n in own]
        total = total + share * aggregate(kind, mode, objective.longest, [weights[n] for n in own])
    return total


def _corrected(found: list[list[Scalar]], answers: list[Answer], most: float) -> list[list[Scalar]]:
    ratios = [
        [min(number((lp - said).exp()), most) for lp, said in zip(a.lp, a.rollout, strict=True)]
        for a in answers
    ]
    return [
        [ratio * loss for ratio, loss in zip(*row, strict=True)]
        for row in zip(ratios, found, strict=True)
    ]


def _value_loss(answers: list[Answer], targets: PerToken, objective: Objective) -> Scalar:
    found = [
        [
            losses.value_loss(value, number(value), target, objective.cliprange_value)
            for value, target in zip(answer.values, of_row, strict=True)
        ]
        for answer, of_row in zip(answers, targets, strict=True)
    ]
    weights = [answer.row.weight for answer in answers]
    return aggregate(found, "token-mean", objective.longest, weights)


def _of_gates(rows: Sequence[Row], policy: torch.nn.Module, objective: Objective) -> Scalar:
    """Switch Transformers' balance, row by row, and ST-MoE's z: means over tokens of their sums."""
    if not objective.balance_coef and not objective.z_coef:
        return ZERO
    total, trained = ZERO, [row for row in rows if row.places]
    for row in trained:
        tokens = torch.tensor([row.tokens])
        for logits in policy(input_ids=tokens, output_router_logits=True).router_logits:
            num_tokens, num_experts = logits.shape
            chosen = logits.topk(policy.config.num_experts_per_tok).indices.flatten().tolist()
            for expert in range(num_experts):
                share = chosen.count(expert) / len(chosen)
                of_expert = share * logits.softmax(-1)[:, expert].mean()
                total = total + objective.balance_coef * num_tokens * num_experts * of_expert
            total = total + objective.z_coef * (logits.logsumexp(-1) ** 2).sum()
    return total / sum(len(row.tokens) for row in trained)
