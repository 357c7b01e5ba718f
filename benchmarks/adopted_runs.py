"""Runs jobs of public forks of Trinity-RFT for three steps, and compares the parts that they bring.

git clone -b featureA https://github.com/shiweijiezero/Trinity-RFT forks/shiweijiezero+Trinity-RFT
python -m benchmarks.adopted_runs forks [--work FOLDER] [NAME ...]

Each file is adopted with a tiny model and rows in its layout, and takes three steps of
`trinity run`. Then the same lines call the parts twice: as they were adopted, and in a process
whose `trinity` is the fork, with stubs for packages that are not installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fork_runs import HERE, IMITATION_STEPS, STEPS, ForkJob, said, typed, write_model
from trinity.user_code.adopt.manifest import Adopted

_HEAD = """
import importlib, importlib.machinery, json, random, sys, types
from dataclasses import dataclass
from types import SimpleNamespace
import torch
def part_of(registry, name):
    listed = json.load(open(sys.argv[1]))["parts"]
    [part] = [each for each in listed if (each["registry"], each["name"]) == (registry, name)]
    own = part["file"].removesuffix(".py").replace("/", ".")
    module = importlib.import_module(own if is_alone else part["module"])
    return getattr(module, part["attribute"])
is_alone = len(sys.argv) > 2
"""
_HERE = """
from trinity.plugins import load_plugins
load_plugins([])
"""
_THERE = """
class Stub(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(self.__name__ + "." + name)
    def __call__(self, *given, **_):
        return given[0] if len(given) == 1 and callable(given[0]) else Stub("called")
    def __mro_entries__(self, bases):
        return ()
    def __or__(self, other):
        return self
    __ror__ = __or__
class Finder:
    def find_spec(self, name, path=None, target=None):
        return self.spec(name) if name.split(".")[0] in ("ray", "vllm", "verl") else None
    def spec(self, name):
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Stub(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Finder())
sys.path.insert(0, sys.argv[2])
"""
_MODEL = """
from trinity.common.experience import Experience
class Model:
    def __init__(self, *texts):
        self.texts = list(texts)
        self.tokenizer = None
    def chat(self, messages, **_):
        text = self.texts.pop(0)
        tokens = torch.tensor([len(str(messages)) % 97, *text.encode()])
        return [Experience(tokens=tokens, prompt_length=1, response_text=text,
                           logprobs=torch.zeros(len(text)))]
    def convert_messages_to_experience(self, messages):
        tokens = torch.tensor(list(str(messages).encode()))
        return Experience(tokens=tokens, prompt_length=3, logprobs=torch.zeros(len(tokens) - 3))
@dataclass
class Arguments:
    temperature: float = 1.0
def task(row, reward_fn=None):
    return SimpleNamespace(raw_task=row, task_desc="", truth="", is_eval=False, repeat_times=1,
                           rollout_args=Arguments(), workflow_args={},
                           reward_fn=reward_fn, reward_fn_args={}, format_args=SimpleNamespace(
                               system_prompt=None, reply_prefix=None))
"""
_COUNTDOWN = """
texts = ["no answer", *(f"<think>a</think><answer>{each}</answer>" for each in ("1*2", "1+2"))]
values, made = [], []
for answers in (texts, texts[2:], texts[:2] * 2):
    flow = part_of("WORKFLOWS", "opmd_baseline_countdown_workflow")(
        model=Model(*answers), task=task({"nums": [1, 2], "target": 3}))
    made += flow.run()
values += [[each.reward, each.tokens.tolist()] for each in made]
short = Experience(tokens=torch.arange(5), prompt_length=2, reward=1.0, logprobs=torch.zeros(3))
kept, metrics = part_of("EXPERIENCE_OPERATORS", "OPMD_filter")().process([*made, short])
values += [len(kept), metrics["filtered_count"]]
kind = part_of("ADVANTAGE_FN", "opmd_reweight_adv")
part = kind(**kind.default_args())
done, _ = part.calculate_group_advantage("", kept)
values += [each.advantages.double().tolist() for each in done]
"""
_RECLIP = """
torch.manual_seed(0)
part = part_of("POLICY_LOSS_FN", "reclip")
old = -torch.rand(8, 12) * 3
new = (old + torch.randn(8, 12) * 0.4).requires_grad_()
loss, _ = part(**part.default_args())(
    logprob=new, old_logprob=old, advantages=torch.randn(8, 12),
    action_mask=torch.rand(8, 12) < 0.8)
loss.backward()
values = [loss.double().item(), new.grad.double().tolist()]
"""
_LOAN = """
# Its workflow reads `self.task`, which workflows of its release have not: only here it runs.
officer = {"monthly_income": 5000.0, "monthly_debts": 900.0, "loan_amount": 9000.0}
analyst = {"dti_ratio": 0.2, "credit_score": 720, "risk_assessment": "low", **officer}
manager = {"decision": "APPROVED", "interest_rate": 6.5, "loan_amount": 9000.0, "term_months": 36}
agents = {"loan_officer": officer, "credit_analyst": analyst, "risk_manager": manager}
texts = ["no JSON", json.dumps({"agent_outputs": agents, "decision": "APPROVED"}),
         json.dumps({"agent_outputs": {**agents, "risk_manager": {"decision": "DENIED"}}})]
reward = part_of("REWARD_FUNCTIONS", "loan_underwriting_reward")()
random.seed(0)
values = [reward(response=text, prompt="{}", truth="") for text in texts]
"""


@dataclass(frozen=True, slots=True)
class AdoptedJob:
    """A file of a fork's examples, rows that its workflow reads, and lines that call its parts."""

    file: str
    rows: tuple[dict[str, object], ...]
    calls: str
    keys: tuple[str, ...] = ()


JOBS = {
    "shiweijiezero+Trinity-RFT": AdoptedJob(
        "R3L/countdown/opmd_reweight_adv_1.5B.yaml",
        ({"nums": [1, 2], "target": 3}, {"nums": [1, 3], "target": 4}),
        _MODEL + _COUNTDOWN,
    ),
    "yaochaorui+Trinity-RFT": AdoptedJob(
        "reclip_gsm8k/reclip_gsm8k.yaml",
        ({"question": "1+2=", "answer": "#### 3"}, {"question": "1+3=", "answer": "#### 4"}),
        _RECLIP,
    ),
    "aman-jaglan+Trinity-RFT": AdoptedJob(
        "loan_failure_learning/loan_failure.yaml",
        ({"prompt": '{"name": "A"}', "responses": "a"}, {"prompt": "{}", "responses": "b"}),
        _LOAN,
    ),
}


def main() -> None:
    """Prints a row of the table for each job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forks", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("adopted_runs"))
    options = parser.parse_args()
    print("| repository | commit | taken | steps | equal |\n| --- | --- | --- | --- | --- |")
    for name in options.names or JOBS:
        print(row_of(options.forks.resolve() / name, name, options.work.resolve() / name))


def row_of(fork: Path, name: str, work: Path) -> str:
    """Adopts and runs a job, and compares its parts."""
    job = JOBS[name]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_model(ForkJob(""), work / "model", IMITATION_STEPS)
    for split in ("train", "test"):
        lines = (json.dumps(each) for each in job.rows * 4)
        (work / f"{split}.jsonl").write_text("\n".join(lines))
    typed(work, "adopt", str(fork), str(Path("examples", job.file)))
    manifest = Adopted.read(work / "adopted.json")
    taken = ", ".join(f"{part.registry} `{part.name}`" for part in manifest.parts)
    equal = called(fork, work, job.calls)
    typed(work, "run", Path(job.file).name, "--adopted", "adopted.json", *keys(job, work))
    [summary] = (work / "checkpoints").rglob("summary.json")
    steps = len(json.loads(summary.read_text())["stages"][0]["rewards"])
    commit = (
        said(["git", "rev-parse", "--short=8", "HEAD"], fork) if (fork / ".git").exists() else ""
    )
    return f"| {name} | {commit} | {taken} | {steps} | {'yes' if equal else 'NO'} |"


def keys(job: AdoptedJob, work: Path) -> list[str]:
    """The keys that a small machine and other rows change."""
    taskset = "buffer.explorer_input.taskset"
    return [
        "--max-steps",
        str(STEPS),
        *HERE,
        f"checkpoint_root_dir={work}/checkpoints",
        f"model.model_path={work}/model",
        "model.max_response_tokens=80",
        "buffer.batch_size=2",
        "buffer.explorer_input.eval_tasksets=[]",
        f"{taskset}.path={work}",
        "algorithm.repeat_times=2",
        "explorer.rollout_model.engine_num=1",
        "synchronizer.sync_interval=1",
        *job.keys,
    ]


def called(fork: Path, work: Path, calls: str) -> bool:
    """True if lines print the same with the parts here and in the fork itself."""
    end = "\nprint(json.dumps(values))"
    manifest = str(work / "adopted.json")
    adopted = {**os.environ, "TRINITY_ADOPTED": manifest}
    here = printed([_HEAD + _HERE + calls + end, manifest], adopted)
    there = printed([_HEAD + _THERE + calls + end, manifest, str(fork)], dict(os.environ))
    return here == there


def printed(words: list[str], variables: dict[str, str]) -> object:
    """The last line that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", *words], env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
