"""An advantage and a loss of a copy of veRL give here what they give in their own files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.verl_functions import compared
from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import missing, value
from tests.unit.verl.copies import FUNCTIONS, TRAINER, write_copy
from trinity.verl.convert import Converted, convert
from trinity.verl.settings import read_sources

CLIP = "actor_rollout_ref.actor.clip_ratio=0.2"
KEYS = f"algorithm.adv_estimator=share actor_rollout_ref.actor.floor=0.5 {CLIP}"
STEEP = "actor_rollout_ref.actor.policy_loss.loss_mode=steep +actor_rollout_ref.actor.power=3"
LOSS = "algorithm.policy_loss_fn"
ADVANTAGE = "algorithm.advantage_fn"
RANK = """
import importlib.util, json, sys
import verl
theirs = verl.__file__, sorted(name for name in sys.modules if name.split(".")[0] == "verl")
spec = importlib.util.spec_from_file_location("verl_functions", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
made = module.Loss(), module.Advantage()
now = verl.__file__, sorted(name for name in sys.modules if name.split(".")[0] == "verl")
from trinity.rft.algorithm.advantage_fn.adapting import TokenData
advantage = made[1]._function
try:
    advantage(TokenData(batch={"advantages": 1}), "engine")
except RuntimeError as error:
    said = str(error)
print(json.dumps({"same": theirs == now, "module": advantage.__module__, "stub": said}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_copy(tmp_path / "copy", FUNCTIONS)


def of_script(folder: Path, keys: str = KEYS) -> Converted:
    path = folder / "run.sh"
    path.write_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {keys}")
    return convert(read_sources([str(path)]))


def test_parts_are_named_with_the_arguments_of_their_trainer(folder: Path) -> None:
    found = of_script(folder)
    assert value(found, ADVANTAGE) == "verl_functions.Advantage"
    assert value(found, LOSS) == "verl_functions.Loss"
    text = found.parts["verl_functions.py"]
    assert "'power': \"config.algorithm.get('power', 2)\"" in text
    assert "'cliprange': 'config.actor_rollout_ref.actor.clip_ratio'" in text
    assert "raise_if_run" not in text and "workers" not in text
    assert "actor_rollout_ref.actor.floor" not in "".join(missing(found))


@pytest.mark.parametrize("keys", [KEYS, f"algorithm.adv_estimator=share {STEEP}"])
def test_values_and_gradients_are_those_of_their_files(folder: Path, keys: str) -> None:
    of_script(folder, keys)
    assert compared(folder / "run.sh") == [True, True]


def test_the_rank_keeps_its_own_verl_and_stubs_raise(folder: Path) -> None:
    part = folder / "verl_functions.py"
    part.write_text(of_script(folder).parts[part.name])
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(part)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["same"] and seen["module"].startswith("_verl_")
    assert "ray.get belongs to a trainer or an engine" in seen["stub"]


def test_a_changed_file_is_refused(folder: Path) -> None:
    part = folder / "verl_functions.py"
    part.write_text(of_script(folder).parts[part.name])
    (folder / "verl/utils/torch_functional.py").write_text("def masked_mean(*_): return 0\n")
    command = [sys.executable, "-c", RANK, str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "torch_functional.py has changed since the job was converted" in done.stderr


def test_a_process_with_credentials_needs_its_operators_word(folder: Path) -> None:
    part = folder / "verl_functions.py"
    part.write_text(of_script(folder).parts[part.name])
    (folder / "security").mkdir()
    (folder / "security/token").write_text("token")
    variables = {**os.environ, "TRINITY_SECURITY_DIR": str(folder / "security")}
    command = [sys.executable, str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert "would run code of" in done.stderr and "TRINITY_TRUST_ADOPTED=true" in done.stderr
    variables["TRINITY_TRUST_ADOPTED"] = "true"
    subprocess.run(command, check=True, env=variables)


@as_subtests(
    ("estimator", "why"),
    [
        ("certain", "it reads `self_certaintys` of the batch"),
        ("whole", "it gives the whole batch to `core_algos.compute_whole`"),
    ],
)
def test_an_advantage_that_needs_more_is_not_taken(
    tmp_path: Path, estimator: str, why: str
) -> None:
    folder = write_copy(tmp_path / estimator, FUNCTIONS)
    found = of_script(folder, f"algorithm.adv_estimator={estimator}")
    assert f"the advantage `{estimator}` of your veRL is not taken: {why}" in "\n".join(
        found.report
    )
    assert "algorithm.adv_estimator" in "".join(missing(found))


def test_an_argument_that_no_source_sets_is_named(tmp_path: Path) -> None:
    found = of_script(write_copy(tmp_path, FUNCTIONS), f"algorithm.adv_estimator=share {CLIP}")
    assert "no source sets `actor_rollout_ref.actor.floor`" in "\n".join(found.report)
    assert value(found, LOSS) == "ppo"


def test_an_argument_that_the_trainer_computes_is_named(tmp_path: Path) -> None:
    trainer = TRAINER.replace("power=power", "power=self.power(batch)")
    files = {**FUNCTIONS, "trainer/ppo/ray_trainer.py": trainer}
    found = of_script(write_copy(tmp_path, files))
    assert "is not taken: `fit` gives it `self.power`" in "\n".join(found.report)
