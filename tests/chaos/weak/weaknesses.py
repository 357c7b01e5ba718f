"""Which function protects what, and the weak one that takes its place."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.patching import Function
from tests.chaos.points import Process

SLOT_ENGINE = "tests.support.model_free.slots:SlotEngine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """`weak` makes the replacement of `target` from the original."""

    protection: str
    process: Process
    target: str
    weak: Callable[[Function], Function]


def _later(process: Process, name: str) -> Callable[[Function], Function]:
    """The weak function, imported in the process that it belongs to and nowhere else."""

    def make(original: Function) -> Function:
        import importlib

        module = importlib.import_module(f"tests.chaos.weak.{process}")
        weak: Function = getattr(module, name)(original)
        return weak

    return make


def _weakness(protection: str, process: Process, target: str, name: str) -> Weakness:
    return Weakness(
        protection=protection,
        process=process,
        target=f"services.{'trainer' if process == 'rank' else process}.{target}",
        weak=_later(process, name),
    )


WEAKNESSES = (
    _weakness("commit-before-ack", "buffer", "ingest.ingest:Ingest._commit", "acknowledge_first"),
    _weakness("known-results", "buffer", "domain.results:ResultDeduplicator.decide", "store_again"),
    _weakness(
        "one-winner", "buffer", "domain.results:ResultDeduplicator._attempt_state", "everyone_wins"
    ),
    _weakness("one-winner", "explorer", "delivery.outbox:Outbox.enqueue_result", "send_twins"),
    _weakness("one-batch-a-row", "buffer", "operations.batch_sources:set_states", "leave_ready"),
    _weakness("one-transaction", "buffer", "operations.batch_sources:set_states", "take_first"),
    _weakness("rest", "buffer", "domain.replay:is_cooled_down", "never_tired"),
    _weakness("batch-kept", "buffer", "servicer.trainer_calls:load_rows", "shuffle_rows"),
    _weakness("incarnation", "buffer", "operations.training:check_incarnation", "let_pass"),
    _weakness("publication", "synchronizer", "store.versions:check_publication", "let_pass"),
    _weakness(
        "manifest", "explorer", "engine.weight_transfer:WeightLoader.load_published", "load_unseen"
    ),
    _weakness("manifest", "rank", "checkpoints.weights:WeightsStore.seal_files", "write_damaged"),
    _weakness("exact-version", "explorer", "types:WeightsRequirement.matches", "take_any"),
    _weakness("seeds", "explorer", "rollout.workflow_factory:SeedInputs.seed_of_call", "draw_anew"),
    _weakness("seeds", "explorer", "rollout.workflow_factory:SeedInputs.seed_of_turn", "draw_anew"),
    _weakness("stored-then-told", "explorer", "openai_api.session:Session.fill", "tell_first"),
    Weakness(
        protection="trained-once",
        process="explorer",
        target="trinity.workflows.agent_workflow:close_session",
        weak=_later("explorer", "close_twice"),
    ),
    _weakness("needed-contents", "buffer", "operations.retention:needed_segments", "need_nothing"),
    _weakness(
        "heard-once", "buffer", "operations.explore_steps:mark_feedback_received", "hear_again"
    ),
    _weakness(
        "operators-again",
        "buffer",
        "pipeline.shaping:AdvantageComputer.compute_groups",
        "think_done",
    ),
    _weakness("chance-from-seeds", "buffer", "domain.task_draws:seeded_generator", "own_chance"),
    _weakness("ranking-kept", "buffer", "operations.explore_steps:ranked_rows", "rank_anew"),
    _weakness(
        "rewards-stored", "buffer", "servicer.curation_calls:give_feedback", "promise_rewards"
    ),
    _weakness("reward-in-place", "buffer", "operations.feedback:store_reward", "keep_both"),
    _weakness("exclusion", "buffer", "operations.curation:exclude", "score_instead"),
    _weakness("deletion", "buffer", "operations.curation:delete_content", "keep_content"),
    _weakness("upload-count", "buffer", "operations.uploads:grow_upload", "forget_count"),
    _weakness("overdue-told-with-it", "buffer", "operations.feedback:log_notice", "tell_first"),
    _weakness("abandoned-as-a-whole", "buffer", "maintenance:delete_taskset", "delete_in_parts"),
    _weakness("inclusion", "buffer", "operations.curation:restore_excluded", "leave_out"),
    _weakness("piped-order", "buffer", "tasksets.task_pipeline:copy_rows", "turn_around"),
    _weakness("least-used", "buffer", "operations.batching:explored_rows", "take_the_first"),
    _weakness("upload-rows-deleted", "buffer", "store.tasksets:delete_tasks", "forget_count"),
    _weakness("stored-order", "buffer", "operations.retrain:load_items", "shuffle_items"),
    _weakness(
        "files-before-row", "rank", "checkpoints.checkpoints:CheckpointStore.write", "promise_files"
    ),
    _weakness("samples-use-images", "buffer", "operations.results:use_media", "use_nothing"),
    _weakness("requests-paused", "explorer", "engine.in_flight:InFlightEngine._pause", "go_on"),
    Weakness(
        protection="counted-behind-the-fence",
        process="explorer",
        target=f"{SLOT_ENGINE}._arrivals",
        weak=_later("explorer", "go_on"),
    ),
    Weakness(
        protection="computed-again",
        process="explorer",
        target=f"{SLOT_ENGINE}._drop_caches",
        weak=_later("explorer", "leave"),
    ),
    *(
        Weakness(
            protection="difference-verified",
            process="explorer",
            target=f"trinity.weights.whole:{name}",
            weak=_later("explorer", "leave"),
        )
        for name in ("flip_bits", "check_applied")
    ),
    _weakness("sink-position", "buffer", "sink.targets:JsonLinesTarget._read", "know_nothing"),
)
