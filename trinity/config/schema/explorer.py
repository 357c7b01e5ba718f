"""Section `explorer`: engines, auxiliary models, over-rollout and timeouts."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from trinity.config.schema.base import (
    NO_SECRETS,
    Args,
    NonNegative,
    NumLogprobs,
    Port,
    Positive,
    Section,
    ValueAliases,
    default_section,
)
from trinity.config.schema.model import AuxiliaryExternalConfig

ModelRole = Literal["generate", "score"]
_ENGINES = ValueAliases(
    planned={"sglang": "SGLang's engine", "tinker": "the Tinker service"},
    aliases={"vllm_async": "vllm"},
)


class EngineConfig(Section):
    """Keys that all engines share."""

    engine_type: Annotated[Literal["vllm", "external", "transformers"], _ENGINES] = "vllm"
    """Inference engine; `external` is a model served elsewhere behind an OpenAI-compatible
    address, or for one that scores behind vLLM's `/classify` and `/pooling`. `transformers` runs an
    auxiliary model that scores on the processor."""
    engine_num: Positive = 1
    """Engines of one explorer, each with its copy of the weights; calls go to the least busy."""
    tensor_parallel_size: Positive = 1
    """GPUs that share each layer of an engine; an engine has this times the two that follow."""
    data_parallel_size: Positive = 1
    """Copies of the weights in one engine, which share only the experts of a mixture."""
    pipeline_parallel_size: Positive = 1
    """Parts that the layers of one engine are split into."""
    enable_expert_parallel: bool = False
    """Whole experts of a mixture on each GPU of an engine, in place of a part of each expert."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Part of a GPU's memory that an engine takes."""
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    """Type of the engine's weights."""
    enforce_eager: bool = False
    """No compiled graphs."""
    enable_prefix_caching: bool = True
    """Prompts with a common prefix share their cache."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts from which images are fetched that requests to the address of a run, or to a served
    model, name by a link; never at private addresses. Images in data URLs are always taken."""
    extra_engine_args: Args = Field(default_factory=dict)
    """Arguments passed to the engine as they are, such as `max_num_seqs`."""
    ignore_eos: bool = False
    """Generate on after the end token, for tests of speed."""
    enable_history: bool = False
    """Keep every call of the model as an experience until the run's workflow takes them, by
    `model.extract_experience_from_history()`."""
    enable_openai_api: bool = False
    """An OpenAI-compatible address on this machine for what a workflow starts or brings: each
    attempt at a run has its own, `model.api_address`, and `model.get_openai_client()` calls it."""
    enable_log_requests: bool = False
    """Log each request to it, without its content."""
    base_port: Port | None = None
    """Its port; another one if that is taken, or if none is given."""
    api_key: str = Field(default="EMPTY", min_length=1)
    """Key that requests to it must bring; `EMPTY` stands for one that is generated."""
    enable_auto_tool_choice: bool = False
    """Take requests with `tools`, among which the model chooses."""
    tool_call_parser: str | None = None
    """How calls of tools are found in a response: one of vLLM's parsers, such as `hermes`."""
    reasoning_parser: str | None = None
    """How thoughts are found in a response: one of vLLM's parsers, such as `qwen3`."""

    @property
    def has_own_key(self) -> bool:
        """True if a key is configured; otherwise one is generated."""
        return self.api_key not in NO_SECRETS

    @property
    def num_gpus(self) -> int:
        """GPUs of one explorer's engines of this model, if the machines have GPUs."""
        if self.engine_type != "vllm":
            return 0
        return self.engine_num * self.gpus_per_engine

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of one engine, if the machines have GPUs."""
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size


class RolloutModelConfig(EngineConfig):
    """The engine that rolls the policy out."""

    engine_type: Annotated[Literal["vllm", "external"], _ENGINES] = "vllm"
    """Inference engine; `external` is a model served elsewhere behind an OpenAI-compatible
    address."""
    enable_multimodal: bool = False
    """Tasksets without a `format.image_key` have images in the column `images` and in parts of
    their messages."""
    sleep_level: Annotated[int, Field(ge=1, le=2)] = 1
    """With `mode: colocate`: where its weights are while the trainer has the GPU. 1: in the host's
    memory; 2: nowhere, so that they are loaded from files at each turn."""


class AuxiliaryModelConfig(EngineConfig):
    """An engine beside the policy's: a judge, a teacher or a reward model."""

    model_path: str = ""
    """Directory of the model in Hugging Face's layout, or its name on the hub."""
    name: str | None = None
    """Its name in messages and logs."""
    role: ModelRole | None = None
    """Its use: it writes texts (`generate`) or scores them (`score`). Without it, its files decide:
    a class such as `*ForSequenceClassification`, or tensors `v_head` or `score`, make it score."""
    score_tokens: tuple[str, ...] = ()
    """With `role: score`, of a model without a head of scores: the tokens whose logits are its
    scores, such as `["-", "+"]` of some process reward models."""
    external_model_config: AuxiliaryExternalConfig = default_section(AuxiliaryExternalConfig)
    """Access to it, for `engine_type: external`."""
    trust_remote_code: bool = False
    """Run the Python code that comes with it, as of `model.trust_remote_code`."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature, unless as `model`."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling, unless as `model`."""
    top_k: int | None = Field(default=None, ge=-1)
    """Sampling among the k likeliest tokens, unless as `model`."""
    logprobs: NumLogprobs | None = None
    """Log-probabilities of other tokens, unless as `model`."""
    max_model_len: Positive | None = None
    """Longest sequence, unless as `model`."""
    max_prompt_tokens: Positive | None = None
    """Longest prompt, unless as `model`."""
    max_response_tokens: Positive | None = None
    """Longest response, unless as `model`."""
    min_response_tokens: NonNegative | None = None
    """No end token before this many, unless as `model`."""
    enable_prompt_truncation: bool | None = None
    """What becomes of long prompts, unless as `model`."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Penalty of repetitions, unless as `model`."""
    enable_thinking: bool | None = None
    """Switch of chat templates that have a thinking mode, unless as `model`."""
    chat_template_kwargs: dict[str, JsonValue] | None = None
    """Further variables of the chat template, unless as `model`."""
    chat_template: str | None = None
    """Jinja text used in place of the tokenizer's chat template."""


class OverRolloutConfig(Section):
    """Steps that do not wait for their slowest tasks."""

    ratio: float = Field(default=0.0, ge=0, lt=1)
    """Part of a step's tasks that may be left behind when the others have ended; 0 is off. Which
    ones is a matter of time, so the same seed need not give the same run."""
    wait_after_min: float = Field(default=30.0, ge=0)
    """Seconds that the last tasks get after enough of the others ended."""
    return_partial_tasks: bool = False
    """Train on the runs that had ended of tasks that are left behind."""


class DynamicTimeoutConfig(Section):
    """A time limit that follows how long runs take."""

    enable: bool = False
    """Lower the limit once runs were timed."""
    warmup_min_steps: Positive = 1
    """Explore steps that are timed before."""
    ratio: float = Field(default=3.0, gt=0)
    """The limit over the mean of what training runs took; never above `max_timeout`."""


class ExplorerConfig(Section):
    """Rollout and evaluation."""

    runner_per_model: Positive = 8
    """Runners of one engine."""
    runs_per_runner: Positive | None = None
    """Runs that a runner has in progress. Without it 64 where workflows and rewards come with
    Trinity and ask no model elsewhere; else one, so that tools and judges are not flooded."""
    max_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for one attempt at a run."""
    max_retry_times: NonNegative = 2
    """Further attempts at a run that failed."""
    isolate_user_code: bool = True
    """Run rewards and synchronous workflows of users' files in processes, which are killed when
    they hang; false runs them in threads of the explorer, which nothing can stop."""
    on_bad_reward: Literal["fail", "zero"] = "fail"
    """What becomes of an answer whose reward raises or returns no finite number: its attempt at the
    run fails, or the answer gets reward 0 and the metric `reward_failed`."""
    rollout_model: RolloutModelConfig = default_section(RolloutModelConfig)
    """The engine."""
    eval_interval: Positive = 100
    """Explore steps between evaluations, a multiple of `synchronizer.sync_interval`."""
    eval_on_startup: bool = True
    """Evaluate the weights that the stage starts with."""
    eval_failed_runs: Literal["zero", "exclude"] = "zero"
    """What a run of an evaluation that failed for good counts: 0 in `reward` and `accuracy`, or, as
    in Trinity-RFT, nothing, so that a task without a finished run is in no figure."""
    best_taskset: str = ""
    """Name of the evaluation taskset by which versions are compared: the results of a run begin
    with its first, best and final figures; else that of the first one in the file."""
    auxiliary_models: tuple[AuxiliaryModelConfig, ...] = ()
    """Models beside it, whose weights stay as they are: judges and teachers, which write text, and
    reward models, which score it."""
    max_inflight_batches: Positive = 2
    """With `sync_style: fully_async`: explore steps that may be on their way at a time."""
    over_rollout: OverRolloutConfig = default_section(OverRolloutConfig)
    """Steps that do not wait for their slowest tasks."""
    dynamic_timeout: DynamicTimeoutConfig = default_section(DynamicTimeoutConfig)
    """A time limit that follows how long runs take."""
    env_vars: dict[str, str | bool | int | float] = Field(default_factory=dict)
    """Environment variables that workflows and rewards see, beside the explorer's own."""
    bench_on_latest_checkpoint: bool = False
    """In `mode: bench`: evaluate the newest checkpoint alone."""
    proxy_port: Port = 8010
    """In `mode: serve`, and for the workflow `clients`: port of the model's address."""
    listen_address: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Network address that this port is reached at. Others than this machine's own take
    certificates and tokens: `trinity run --secure`, or `TRINITY_SECURITY_DIR`."""
    service_status_check_interval: Positive = 60
    """In `mode: serve`: seconds between two looks for newer weights of the run."""
    min_running_model_num: Positive = 1
    """In `mode: serve`: engines that go on answering while others load newer weights; with a single
    engine, requests wait."""
