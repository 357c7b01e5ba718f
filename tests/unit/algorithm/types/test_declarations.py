"""Every algorithm type declares parts that exist and arguments that they take."""

import subprocess
import sys
from dataclasses import asdict
from typing import get_args

from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.aggregation import LossAggMode as TrainersLossAggMode
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.kl.estimators import KL_ESTIMATORS
from trinity.algorithm.policy_loss import PAIR_LOSSES, POLICY_LOSSES
from trinity.algorithm.rollout_correction.settings import PRESETS, CorrectionSettings, PresetName
from trinity.algorithm.sampling import SAMPLE_STRATEGIES
from trinity.algorithm.signature import read_signature, read_table
from trinity.algorithm.token_advantage import NEEDS, TOKEN_ADVANTAGES
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.schema.algorithm import (
    EntropyLossFn,
    KlFn,
    LossAggMode,
    RolloutCorrectionConfig,
)

NAMES = tuple(ALGORITHM_TYPES.builtins)
OF_TRINITY_RFT = [
    "ppo",
    "grpo",
    "grpo_verl",
    "dapo",
    "reinforceplusplus",
    "rloo",
    "opmd",
    "asymre",
    "topr",
    "cispo",
    "gspo",
    "sapo",
    "sppo",
    "rec",
    "raft",
    "mix",
    "mix_chord",
    "multi_step_grpo",
    "gigpo",
    "on_policy_distill",
    "jsd",
    "sft",
    "cpt",
    "dpo",
]
REGISTRIES = {
    "sample_strategy": (SAMPLE_STRATEGIES,),
    "advantage_fn": (ADVANTAGES, TOKEN_ADVANTAGES),
    "policy_loss_fn": (POLICY_LOSSES,),
    "entropy_loss_fn": (ENTROPY_LOSSES,),
}


MORE = {
    *("dr_grpo", "gspo_token", "jensen_shannon"),
    *("dcpo", "m2po", "maxrl", "gfpo", "gvpo", "vapo", "pf_ppo", "grpo_distill", "sdpo"),
    *("ipo", "simpo", "orpo", "kto", "online_dpo", "vocabulary_distill"),
}


def test_every_algorithm_of_trinity_rft_is_there_and_those_that_it_has_not() -> None:
    assert len(OF_TRINITY_RFT) == 24
    assert set(NAMES) - set(OF_TRINITY_RFT) == MORE
    assert set(OF_TRINITY_RFT) <= set(NAMES)


@as_subtests("name", NAMES)
def test_a_type_bears_the_name_it_is_registered_by_and_says_what_it_is(name: str) -> None:
    declared = ALGORITHM_TYPES.get(name)
    assert declared.name == name
    for sentence in (declared.summary, declared.when_to_use):
        assert sentence.endswith(".") and sentence[0].isupper()
    assert declared.paper.startswith("https://")


@as_subtests("name", NAMES)
def test_every_declared_part_exists(name: str) -> None:
    declared = ALGORITHM_TYPES.get(name)
    for part, registries in REGISTRIES.items():
        chosen = getattr(declared, part)
        assert any(chosen in registry.builtins for registry in registries), (part, chosen)
    assert {declared.kl_loss_fn, declared.kl_penalty_fn} <= KL_ESTIMATORS.keys()
    assert declared.loss_agg_mode in get_args(LossAggMode)


@as_subtests("name", NAMES)
def test_declared_arguments_are_taken_and_differ_from_the_functions_own(name: str) -> None:
    declared = ALGORITHM_TYPES.get(name)
    for part, arguments in declared.args.items():
        paths = {k: v for registry in REGISTRIES[part] for k, v in registry.builtins.items()}
        known = read_signature(paths[getattr(declared, part)]).arguments
        for argument, value in arguments.items():
            assert known[argument].allows(value)
            assert known[argument].default != value


@as_subtests("name", NAMES)
def test_exactly_what_needs_values_declares_a_critic(name: str) -> None:
    declared = ALGORITHM_TYPES.get(name)
    assert declared.needs_critic == ("values" in NEEDS.get(declared.advantage_fn, ()))


def test_pairs_alone_must_not_be_parted() -> None:
    kept = {name for name in NAMES if not ALGORITHM_TYPES.get(name).can_balance_batch}
    assert kept == set(PAIR_LOSSES)


def test_what_the_configuration_takes_is_what_there_is() -> None:
    assert set(get_args(KlFn)) == KL_ESTIMATORS.keys()
    assert set(get_args(EntropyLossFn)) == ENTROPY_LOSSES.builtins.keys()
    assert get_args(LossAggMode) == get_args(TrainersLossAggMode)
    assert RolloutCorrectionConfig().model_dump(exclude={"preset"}) == asdict(CorrectionSettings())
    assert set(get_args(PresetName)) == PRESETS.keys()


def test_every_built_in_function_can_be_read_and_imported_under_its_name() -> None:
    for registries in REGISTRIES.values():
        for registry in registries:
            for name, path in registry.builtins.items():
                signature = read_signature(path)
                assert callable(registry.get(name))
                assert signature.input_type is not None or registry is SAMPLE_STRATEGIES
                assert signature.documentation, path
                assert not any(a.is_required for a in signature.arguments.values()), path


def test_the_table_of_estimators_is_read_as_it_is() -> None:
    paths = read_table("trinity.algorithm.kl.estimators.KL_ESTIMATORS")
    assert list(paths) == list(KL_ESTIMATORS)
    for name, path in paths.items():
        assert path.rpartition(".")[2] == getattr(KL_ESTIMATORS[name], "__name__", "")


def test_declarations_signatures_and_documentation_bring_no_torch() -> None:
    code = (
        "import sys; from trinity.algorithm.types import ALGORITHM_TYPES; "
        "from trinity.algorithm import document; "
        "[ALGORITHM_TYPES.get(n) for n in ALGORITHM_TYPES.names()]; "
        "[list(table()) for table in document.TABLES.values()]; "
        "print([m for m in ('torch', 'verl', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
