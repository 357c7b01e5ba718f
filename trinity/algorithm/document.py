"""Writes the tables of docs/algorithms.md from the registries and the functions' docstrings.

python -m trinity.algorithm.document docs/algorithms.md [--check]
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.algorithm_type import AlgorithmType
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.rollout_correction.settings import PRESETS, CorrectionSettings
from trinity.algorithm.sampling import SAMPLE_STRATEGIES
from trinity.algorithm.signature import (
    Signature,
    read_documentation,
    read_signature,
    read_table,
)
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES, needs_of
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.runtime.doc_tables import fill_tables, write_page

KL_ESTIMATORS = "trinity.algorithm.kl.estimators.KL_ESTIMATORS"
KL_CONTROLLER = "trinity.algorithm.kl.controller.kl_controller"
UNMEASURED = "not measured"
STALENESS_AND_MISMATCH = "old weights, and an engine that computes differently"
MISMATCH_ONLY = "an engine that computes differently; it drops almost all old rollouts"
_URL = re.compile(r"https?://[^\s)]*[^\s).,;:]")
_ARXIV = "https://arxiv.org/abs/"

Row = tuple[str, ...]


def main() -> None:
    """Writes the tables, or reports that they differ from the code."""
    write_page("The parts of algorithms, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with its tables filled from the code."""
    return fill_tables(text, _lines)


def _lines(name: str) -> list[str]:
    rows = list(TABLES[name]())
    head, body = rows[0], rows[1:]
    return [_line(head), _line(tuple("---" for _ in head)), *map(_line, body)]


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def _types() -> Iterator[Row]:
    yield ("`algorithm_type`", "What", "When to use", "Parts", "Rollouts", "Safe lag", "Paper")
    for name in ALGORITHM_TYPES.builtins:
        declared = ALGORITHM_TYPES.get(name)
        yield (
            f"`{name}`",
            _plain(declared.summary),
            _plain(declared.when_to_use),
            _parts(declared),
            str(declared.repeat_times) if declared.schema == "experience" else "data",
            declared.safe_lag or (UNMEASURED if declared.schema == "experience" else "data"),
            _links(declared.paper),
        )


def _parts(declared: AlgorithmType) -> str:
    """Lists only what differs from the defaults."""
    parts = [f"advantage `{declared.advantage_fn}`", f"loss `{declared.policy_loss_fn}`"]
    if declared.schema != "experience":
        parts = parts[1:]
    if declared.needs_critic:
        parts.append("a critic")
    for word, name in (
        ("samples", declared.sample_strategy),
        ("KL loss", declared.kl_loss_fn),
        ("KL penalty", declared.kl_penalty_fn),
        ("entropy", declared.entropy_loss_fn),
        ("sum", declared.loss_agg_mode),
    ):
        if name not in ("default", "none", "token-mean"):
            parts.append(f"{word} `{name}`")
    for arguments in declared.args.values():
        parts += [f"`{name}: {value}`" for name, value in arguments.items()]
    return ", ".join(parts)


def _functions(builtins: Mapping[str, str]) -> Iterator[Row]:
    yield ("Name", "What", "Formula", "Arguments", "Paper")
    for name, path in builtins.items():
        signature = read_signature(path)
        yield (
            f"[`{name}`]({_source(path)})",
            _plain(read_documentation(path.rpartition(".")[0]).split("\n")[0]),
            _formula(signature),
            _arguments(signature),
            _links(signature.documentation),
        )


def _token_advantages() -> Iterator[Row]:
    rows = _functions(TOKEN_ADVANTAGES.builtins)
    yield (*next(rows), "Needs")
    for name, row in zip(TOKEN_ADVANTAGES.builtins, rows, strict=True):
        yield (*row, ", ".join(sorted(needs_of(name))))


def _kl() -> Iterator[Row]:
    yield ("Name", "At each token, p of the policy, q of the reference", "Paper")
    for name, path in read_table(KL_ESTIMATORS).items():
        signature = read_signature(path)
        yield (f"`{name}`", _formula(signature), _links(signature.documentation))


def _kl_arguments() -> Iterator[Row]:
    yield ("Arguments of `kl_loss_fn_args` and `kl_penalty_fn_args`",)
    yield (_arguments(read_signature(KL_CONTROLLER)),)


def _strategies() -> Iterator[Row]:
    yield ("Name", "What", "Arguments")
    for name, path in SAMPLE_STRATEGIES.builtins.items():
        signature = read_signature(path)
        yield (f"`{name}`", _formula(signature), _arguments(signature))


def _corrections() -> Iterator[Row]:
    yield ("`preset`", "What", "Keys that it sets", "Corrects for", "Paper")
    usual = asdict(CorrectionSettings())
    for name, preset in PRESETS.items():
        given = asdict(preset.settings)
        changed = [f"`{k}: {v}`" for k, v in given.items() if v != usual[k]]
        what = _plain(_URL.sub("", preset.summary)).rstrip(" :,")
        yield (
            f"`{name}`",
            f"{what}.",
            ", ".join(changed),
            STALENESS_AND_MISMATCH if preset.tolerates_staleness else MISMATCH_ONLY,
            _links(preset.summary),
        )


TABLES: Mapping[str, Callable[[], Iterator[Row]]] = {
    "algorithm types": _types,
    "group advantages": lambda: _functions(ADVANTAGES.builtins),
    "token advantages": _token_advantages,
    "policy losses": lambda: _functions(POLICY_LOSSES.builtins),
    "kl": _kl,
    "kl arguments": _kl_arguments,
    "entropy losses": lambda: _functions(ENTROPY_LOSSES.builtins),
    "sample strategies": _strategies,
    "rollout corrections": _corrections,
}


def _formula(signature: Signature) -> str:
    """Returns the first paragraph of the docstring."""
    return _plain(_URL.sub("", signature.documentation.split("\n\n")[0]))


def _arguments(signature: Signature) -> str:
    shown = [f"`{name}` {_shown(a.default)}" for name, a in signature.arguments.items()]
    return ", ".join(shown)


def _shown(default: object) -> str:
    if isinstance(default, str):
        return f"`{default}`"
    return "null" if default is None else str(default).lower()


def _plain(text: str) -> str:
    """Returns one line in which Markdown finds no markup."""
    line = " ".join(text.split())
    return re.sub(r"(?<!`)[|*<](?!`)", lambda sign: f"\\{sign[0]}", line)


def _links(text: str) -> str:
    links = []
    for url in dict.fromkeys(_URL.findall(text)):
        shown = url.removeprefix(_ARXIV) if url.startswith(_ARXIV) else url.split("/")[2]
        links.append(f"[{shown}]({url})")
    return ", ".join(links)


def _source(path: str) -> str:
    return f"../{path.rpartition('.')[0].replace('.', '/')}.py"


if __name__ == "__main__":
    main()
