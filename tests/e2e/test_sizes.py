"""Services take no more of their host than `trinity config plan` says, and not much less."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from examples.addition.model import MAX_LENGTH, build_tokenizer
from examples.addition.prepare import prepare
from tests.e2e.launched import Launched
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.config.sizing.disk import disk_sizes
from trinity.config.sizing.services import service_sizes

pytestmark = [pytest.mark.timeout(1800), pytest.mark.thorough]
REPOSITORY = Path(__file__).resolve().parents[2]
MEASURE_SECONDS = 0.1
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
CONFIG = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
mode: both
model: {{model_path: {root}/{name}-model, max_prompt_tokens: 16, max_response_tokens: 6}}
explorer: {{rollout_model: {{dtype: float32, enforce_eager: true}}}}
trainer: {{dtype: float32, save_interval: 2, total_steps: 3, max_checkpoints_to_keep: 1}}
algorithm: {{algorithm_type: grpo, repeat_times: 4, optimizer: {{lr: 1.0e-4}}}}
buffer:
  batch_size: 8
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: math_reward
    taskset:
      path: {root}/made/data/train.jsonl
      format: {{prompt_key: question, response_key: answer}}
"""


def save_model(directory: Path, width: int) -> int:
    """A random model of the example's tokenizer; answers how many parameters it has."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=6,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 32,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    model.save_pretrained(directory)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def memory_of(pid: int) -> int:
    """What a container is charged for and cannot give back, of a process and its children."""
    total = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        total += sum(  # a process that has ended has none
            int(found.get(key, "0").split()[0]) * 1024 for key in ("RssAnon", "RssShmem")
        )
    return total


@contextmanager
def measured(run: Launched) -> Iterator[dict[str, int]]:
    """The most that each service had while the run went on."""
    most = dict.fromkeys(SERVICES, 0)
    ended = threading.Event()

    def measure() -> None:
        while not ended.wait(MEASURE_SECONDS):
            for name in SERVICES:
                try:
                    most[name] = max(most[name], memory_of(run.pid(name)))
                except (OSError, KeyError, ValueError, psutil.Error):
                    continue  # not started yet, or just ending

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def test_services_take_what_is_planned_for_two_sizes_of_model(tmp_path: Path) -> None:
    """With the larger one, most of it depends on the number of parameters."""
    prepare(tmp_path / "made", seed=5)
    taken, planned, parameters = {}, {}, {}
    for name, width in (("small", 128), ("large", 768)):
        parameters[name] = save_model(tmp_path / f"{name}-model", width)
        run = Launched(tmp_path, name, REPOSITORY, CONFIG)
        run.start()
        try:
            with measured(run) as taken[name]:
                assert run.wait() == 0, run.text
        finally:
            run.end()
        plan = plan_experiment(load_config(run.config))
        planned[name] = service_sizes(plan)
        stage = run.job_dir / "stages" / "main"
        terms = {term.name: term.bytes for term in disk_sizes(plan)["run"]}
        (checkpoint,) = (stage / "checkpoints").glob("step-*")
        assert size_of(checkpoint) == pytest.approx(terms["main: checkpoints"] / 2, rel=0.03)
        for version in (stage / "weights").glob("v*-*"):
            assert size_of(version) == pytest.approx(terms["main: versions"] / 3, rel=0.03)
    for name, sizes in planned.items():
        for service in SERVICES:
            had = taken[name][service]
            assert 0 < had < sizes[service].memory_bytes, (name, service)
    for service in ("trainer", "explorer"):
        assert taken["large"][service] > planned["large"][service].memory_bytes / 3, service
        more = taken["large"][service] - taken["small"][service]
        assert more > 4 * (parameters["large"] - parameters["small"]), f"{service}: it is measured"


def size_of(folder: Path) -> int:
    """Bytes of its files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
