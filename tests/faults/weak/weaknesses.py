"""Which function protects what, and the weak one that takes its place."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.patching import Function
from tests.faults.points import Process


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

        module = importlib.import_module(f"tests.faults.weak.{process}")
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
    _weakness("commit-before-ack", "buffer", "ingest:Ingest._commit", "acknowledge_first"),
    _weakness("known-results", "buffer", "domain.judgement:Judge.judge", "store_again"),
    _weakness("one-winner", "buffer", "domain.judgement:Judge._decide", "everyone_wins"),
    _weakness("one-winner", "explorer", "delivery.outbox:Unconfirmed.add", "send_twins"),
    _weakness("one-batch-a-row", "buffer", "handlers.recording:set_states", "leave_ready"),
    _weakness("one-transaction", "buffer", "handlers.recording:set_states", "take_first"),
    _weakness("one-transaction", "buffer", "handlers.replaying:set_states", "take_first"),
    _weakness("rest", "buffer", "domain.replay:has_rested", "never_tired"),
    _weakness("batch-kept", "buffer", "servicer.training:load_rows", "shuffle_rows"),
    _weakness("incarnation", "buffer", "handlers.training:check_incarnation", "let_pass"),
    _weakness("publication", "synchronizer", "store.versions:check_publication", "let_pass"),
    _weakness("manifest", "explorer", "engine.weight_transfer:WeightLoader.load", "load_unseen"),
    _weakness("manifest", "rank", "checkpoints.weights:WeightsStore.write", "write_damaged"),
    _weakness(
        "exact-version", "explorer", "engine.weight_transfer:Requirement.is_met_by", "take_any"
    ),
    _weakness("seeds", "explorer", "rollout.workflow_factory:SeedBase.seed_of_call", "draw_anew"),
    _weakness("needed-contents", "buffer", "handlers.retaining:needed_segments", "need_nothing"),
    _weakness("heard-once", "buffer", "handlers.task_feedback:mark_heard", "hear_again"),
    _weakness("operators-again", "buffer", "shaping:Shaper.shape", "think_done"),
    _weakness("chance-from-seeds", "buffer", "domain.selector:generator", "own_chance"),
    _weakness("ranking-kept", "buffer", "handlers.drawing:ranked_rows", "rank_anew"),
    _weakness("rewards-stored", "buffer", "servicer.steering:give_feedback", "promise_rewards"),
    _weakness("reward-in-place", "buffer", "handlers.feedback:store_reward", "keep_both"),
    _weakness("exclusion", "buffer", "handlers.setting_aside:exclude", "score_instead"),
    _weakness("deletion", "buffer", "handlers.setting_aside:delete_content", "keep_content"),
    _weakness("upload-count", "buffer", "handlers.uploading:grow_upload", "forget_count"),
    _weakness("overdue-told-with-it", "buffer", "handlers.feedback:log_event", "tell_first"),
    _weakness("abandoned-as-a-whole", "buffer", "upkeep:delete_taskset", "delete_in_parts"),
    _weakness("inclusion", "buffer", "handlers.setting_aside:take_back", "leave_out"),
    _weakness("piped-order", "buffer", "piping:copy_rows", "turn_around"),
    _weakness("least-used", "buffer", "handlers.composing:explored_rows", "take_the_first"),
    _weakness("upload-rows-deleted", "buffer", "store.catalogue:delete_tasks", "forget_count"),
    _weakness("stored-order", "buffer", "handlers.retraining:load_items", "shuffle_items"),
    _weakness(
        "files-before-row", "rank", "checkpoints.checkpoints:CheckpointStore.write", "promise_files"
    ),
)
