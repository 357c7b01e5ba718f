"""YAML as users write it: what each snippet loads to, or where it is refused."""

from pathlib import Path
from typing import Any

import yaml

from tests.unit.golden.adapters import surroundings, trinity
from tests.unit.golden.corpus import changes
from tests.unit.golden.outcomes import outcome
from tests.unit.source_names import ROOT

BASE = """\
project: demo
name: sums
seed: 7
checkpoint_root_dir: /runs
model: {model_path: /models/tiny, max_model_len: 24}
algorithm:
  algorithm_type: grpo
  repeat_times: 8
buffer:
  batch_size: 4
  total_steps: 10
  explorer_input:
    default_workflow_type: simple_workflow
    taskset: {name: train, path: /data/train.jsonl}
"""
VARIABLES = {
    "GOLDEN_STEPS": "12",
    "GOLDEN_EMPTY": "",
    "GOLDEN_ON": "on",
    "GOLDEN_TEXT": "a: b # c",
    "GOLDEN_PATH": "/models/of/env",
}
STEPS, NAME, SEED = "total_steps: 10", "name: sums", "seed: 7"
MODEL, TYPE, TASKSET = "/models/tiny", "algorithm_type: grpo", "taskset: {name: train, path:"

Swap = tuple[str, str]
SWAPS: dict[str, tuple[Swap, ...]] = {
    "as it is": (),
    # Numbers and booleans as YAML 1.1 and 1.2 read them.
    "steps octal": ((STEPS, "total_steps: 010"),),
    "steps octal of 1.2": ((STEPS, "total_steps: 0o10"),),
    "steps hexadecimal": ((STEPS, "total_steps: 0x10"),),
    "steps binary": ((STEPS, "total_steps: 0b101"),),
    "steps with underscore": ((STEPS, "total_steps: 1_000"),),
    "steps sexagesimal": ((STEPS, "total_steps: 1:30"),),
    "steps as text": ((STEPS, 'total_steps: "10"'),),
    "steps float": ((STEPS, "total_steps: 10.0"),),
    "steps half": ((STEPS, "total_steps: 10.5"),),
    "steps exponent": ((STEPS, "total_steps: 1e3"),),
    "steps on": ((STEPS, "total_steps: on"),),
    "steps negative": ((STEPS, "total_steps: -1"),),
    "steps zero": ((STEPS, "total_steps: 0"),),
    "steps huge": ((STEPS, "total_steps: 99999999999999999999"),),
    "steps null": ((STEPS, "total_steps: null"),),
    "steps nothing": ((STEPS, "total_steps:"),),
    "steps infinite": ((STEPS, "total_steps: .inf"),),
    "steps a list": ((STEPS, "total_steps: [10]"),),
    "steps a date": ((STEPS, "total_steps: 2024-01-01"),),
    "name a date": ((NAME, "name: 2024-01-01"),),
    "name no": ((NAME, "name: no"),),
    "name a number": ((NAME, "name: 010"),),
    "name quoted number": ((NAME, "name: '010'"),),
    "name with slash": ((NAME, "name: a/b"),),
    "name empty": ((NAME, "name: ''"),),
    "name in other letters": ((NAME, "name: 試驗"),),
    "name over lines": ((NAME, "name: >-\n  su\n  ms"),),
    "seed with sign": ((SEED, "seed: +7"),),
    "seed tilde": ((SEED, "seed: ~"),),
    "tagged text": ((SEED, "seed: !!str 7"),),
    "tagged python": ((SEED, "seed: !!python/name:os.system"),),
    "algorithm other letters": ((TYPE, "algorithm_type: GRPO"),),
    "algorithm unknown": ((TYPE, "algorithm_type: grop"),),
    "lr without point": ((TYPE, f"{TYPE}\n  optimizer: {{lr: 1e-6}}"),),
    "lr as text": ((TYPE, f'{TYPE}\n  optimizer: {{lr: "1e-6"}}'),),
    "lr negative": ((TYPE, f"{TYPE}\n  optimizer: {{lr: -1.0}}"),),
    "lr not a number": ((TYPE, f"{TYPE}\n  optimizer: {{lr: .nan}}"),),
    # Sections that hold nothing, or the wrong thing.
    "section null": ((SEED, f"{SEED}\nexplorer:"),),
    "section empty": ((SEED, f"{SEED}\nexplorer: {{}}"),),
    "section a list": ((SEED, f"{SEED}\nexplorer: []"),),
    "section a text": ((SEED, f"{SEED}\nexplorer: fast"),),
    "buffer null": ((BASE[BASE.index("buffer:") :], "buffer:\n"),),
    "no model": (("model: {model_path: /models/tiny, max_model_len: 24}\n", ""),),
    "list for a section in a list": ((SEED, f"{SEED}\nstages: [[]]"),),
    "stages none": ((SEED, f"{SEED}\nstages: []"),),
    "stages two": ((SEED, f"{SEED}\nstages: [{{stage_name: a}}, {{stage_name: b}}]"),),
    "stages of one name": ((SEED, f"{SEED}\nstages: [{{stage_name: a}}, {{stage_name: a}}]"),),
    "stages without names": ((SEED, f"{SEED}\nstages: [{{mode: both}}, {{mode: both}}]"),),
    # Anchors, merges, keys twice, other documents.
    "anchor": ((SEED, "seed: &seed 7\nlog: {level: INFO}"), (STEPS, "total_steps: *seed")),
    "anchor unknown": ((STEPS, "total_steps: *nothing"),),
    "merge": (
        (TASKSET, f"<<: {{default_reward_fn_type: math_reward}}\n    {TASKSET}"),
        ("default_workflow_type", "&x default_workflow_type"),
    ),
    "merge of no mapping": ((SEED, f"{SEED}\n<<: 3"),),
    "key twice": ((SEED, f"{SEED}\nseed: 8"),),
    "key twice deep": ((STEPS, f"{STEPS}\n  total_steps: 11"),),
    "key a number": ((SEED, f"{SEED}\n3: 4"),),
    "key on": ((SEED, f"{SEED}\non: 4"),),
    "key null": ((SEED, f"{SEED}\n~: 4"),),
    "two documents": ((SEED, f"{SEED}\n---\nseed: 8"),),
    "tab": ((SEED, f"{SEED}\nexplorer:\n\teval_interval: 3"),),
    "unclosed": ((SEED, "seed: [7"),),
    "byte order mark": (("project: demo", "\ufeffproject: demo"),),
    "windows lines": (("\n", "\r\n"),),
    # Interpolation and variables.
    "interpolated": ((STEPS, "total_steps: ${seed}"),),
    "interpolated text": ((NAME, "name: ${project}-${seed}"),),
    "interpolated relative": ((STEPS, "total_steps: ${.batch_size}"),),
    "interpolated to itself": ((STEPS, "total_steps: ${buffer.total_steps}"),),
    "interpolated from nothing": ((STEPS, "total_steps: ${no.such}"),),
    "interpolation unclosed": ((NAME, "name: ${seed"),),
    "interpolation escaped": ((NAME, r"name: \${seed}"),),
    "env": ((STEPS, "total_steps: ${oc.env:GOLDEN_STEPS}"),),
    "env in a text": ((MODEL, '"${oc.env:GOLDEN_PATH}/x"'),),
    "env with a default": ((STEPS, "total_steps: ${oc.env:GOLDEN_NONE,15}"),),
    "env with an empty default": ((NAME, "name: ${oc.env:GOLDEN_NONE,}"),),
    "env without": ((STEPS, "total_steps: ${oc.env:GOLDEN_NONE}"),),
    "env empty": ((NAME, "name: ${oc.env:GOLDEN_EMPTY}"),),
    "env on": ((SEED, f"{SEED}\ncontinue_from_checkpoint: ${{oc.env:GOLDEN_ON}}"),),
    "env text": ((NAME, "group: ${oc.env:GOLDEN_TEXT}\nname: sums"),),
    "resolver unknown": ((STEPS, "total_steps: ${oc.decode:3}"),),
    "mandatory": ((STEPS, "total_steps: ???"),),
    # Keys of Trinity-RFT: renamed, planned, without effect; and misspelled ones.
    "misspelled": ((SEED, f"{SEED}\nexplorer: {{eval_intervall: 3}}"),),
    "misspelled section": ((SEED, f"{SEED}\nexplorr: {{eval_interval: 3}}"),),
    "booleans of 1.1": (
        (SEED, f"{SEED}\ncontinue_from_checkpoint: off\nexplorer: {{eval_on_startup: yes}}"),
    ),
    "boolean as text": ((SEED, f"{SEED}\ncontinue_from_checkpoint: 'false'"),),
    "boolean as number": ((SEED, f"{SEED}\ncontinue_from_checkpoint: 1"),),
    "runner_num": ((SEED, f"{SEED}\nexplorer: {{runner_num: 4}}"),),
    "ray namespace": ((SEED, f"{SEED}\nray_namespace: x"),),
    "monitor planned": ((SEED, f"{SEED}\nmonitor: {{monitor_type: swanlab}}"),),
    "gradient clip of verl": (
        (
            SEED,
            f"{SEED}\ntrainer:\n  trainer_config:\n    actor_rollout_ref: "
            "{actor: {grad_clip: 0.5, optim: {lr: 3e-5}}}",
        ),
    ),
    "total epochs": ((STEPS, "total_epochs: 2"),),
    "both of epochs and steps": ((STEPS, f"{STEPS}\n  total_epochs: 2"),),
    "steps at the trainer": ((SEED, f"{SEED}\ntrainer: {{total_steps: 5}}"),),
    "taskset of several": ((TASKSET, f"tasksets: [{{name: a, path: /a}}]\n    {TASKSET}"),),
    "sync": ((SEED, f"{SEED}\nsynchronizer: {{sync_method: checkpoint, sync_interval: 3}}"),),
    "sync interval zero": ((SEED, f"{SEED}\nsynchronizer: {{sync_interval: 0}}"),),
    "sync style": ((SEED, f"{SEED}\nsynchronizer: {{sync_style: dynamic_by_explorer}}"),),
    "mode serve": ((SEED, f"{SEED}\nmode: serve"),),
    "mode bench": ((SEED, f"{SEED}\nmode: bench"),),
    "mode explore": ((SEED, f"{SEED}\nmode: explore"),),
    "mode train": ((SEED, f"{SEED}\nmode: train"),),
    "mode unknown": ((SEED, f"{SEED}\nmode: trian"),),
}
WHOLE = {
    "empty file": "",
    "only a comment": "# nothing\n",
    "a list": "- a\n",
    "a text": "grpo\n",
    "null": "~\n",
    "not YAML": "a: b: c\n",
    "control character": "a: \x07\n",
}
OVERRIDES: dict[str, tuple[str, ...]] = {
    "number": ("buffer.total_steps=20",),
    "two of one key": ("buffer.total_steps=20", "buffer.total_steps=21"),
    "exponent": ("algorithm.optimizer.lr=1e-5",),
    "boolean": ("continue_from_checkpoint=off",),
    "text like a number": ("name=010",),
    "mapping": ("explorer={eval_interval: 5}",),
    "list": ("buffer.explorer_input.eval_tasksets=[{name: e, path: /e.jsonl}]",),
    "nothing": ("group=",),
    "null": ("buffer.total_steps=null",),
    "quoted": ("group='a b'",),
    "with equals": ("group=a=b",),
    "interpolated": ("group=${name}",),
    "unknown key": ("buffer.totl_steps=3",),
    "below a value": ("seed.x=3",),
    "not an override": ("buffer.total_steps",),
    "into a list": ("stages[0].mode=both",),
    "plus": ("+group=x",),
}


def snippets() -> dict[str, str]:
    """Every file by the name of its case."""
    made = dict(WHOLE)
    for name, swaps in SWAPS.items():
        text = BASE
        for old, new in swaps:
            assert old in text, (name, old)
            text = text.replace(old, new)
        made[name] = text
    return made


def loaded(folder: Path) -> dict[str, Any]:
    """Returns the outcome of each snippet, and of a refused one the exit code."""
    results: dict[str, Any] = {}
    with surroundings(ROOT, VARIABLES):
        file = folder / "x.yaml"
        for name, text in snippets().items():
            file.write_bytes(text.encode())
            results[name] = outcome(file)
            if "mistakes" in results[name]:
                results[name]["exit code"] = trinity("config", "check", str(file)).code
    return results


def overridden(folder: Path) -> dict[str, Any]:
    """What keys on the command line come to."""
    file = folder / "x.yaml"
    file.write_text(BASE, encoding="utf-8")
    results: dict[str, Any] = {}
    with surroundings(ROOT, VARIABLES):
        base = yaml.safe_load(trinity("config", "show", str(file)).out)
        for name, words in OVERRIDES.items():
            done = trinity("config", "show", str(file), *words)
            shown = changes(base, yaml.safe_load(done.out)) if done.code == 0 else None
            results[name] = {"exit code": done.code, "changes": shown}
    return results
