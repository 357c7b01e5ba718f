"""Each place that the program writes to, and each loop, is known and is in `docs/guarantees.md`.

A new one fails here: give it its row there, then name its function below.
python -m tests.support.places_and_loops lists them.
"""

import ast
import inspect
import re
from collections.abc import Mapping

import pytest

from services.buffer import __main__ as buffer
from services.buffer.maintenance import FEEDBACK_TIMEOUTS, STRAGGLER_CUTOFF
from services.trainer.control.jobs import TrainerReadiness
from tests.support.places_and_loops import ROOT, found_in, found_in_source, loops, places
from tests.unit.subtests import as_subtests
from trinity.run.launch.run import LocalRun

PLACES: dict[str, dict[str, str]] = {
    "run's directory": {
        "trinity/run/launch/content.py": "ContentRecord.add",
        "trinity/run/launch/modes.py": "BenchSource.complete_plan",
        "trinity/run/launch/resume.py": "store_plan",
        "trinity/run/launch/retrain.py": "retraining_plan",
        "trinity/run/launch/run.py": "PhaseTimer.save LocalRun._create LocalRun._stack",
        "trinity/run/local/addresses.py": "write_stack_directory",
        "trinity/run/local/data_juicer.py": "_only_trinity",
        "trinity/run/local/given_run.py": "register_database",
        "trinity/run/local/infrastructure.py": (
            "Infrastructure._prepare_own Infrastructure.write_files"
        ),
        "trinity/run/local/nats.py": "NatsServer.prepare_process",
        "trinity/run/local/postgres.py": (
            "PostgresServer._end_stale_server PostgresServer._identity "
            "PostgresServer._initialise PostgresServer.prepare_process"
        ),
        "trinity/run/local/reaper.py": "JobLock.acquire JobLock.release _lock refuse_if_locked",
        "trinity/run/local/run_file.py": "RunningStack.write_run_file remove_run_file",
        "trinity/run/launch/spread.py": "_moved",
        "trinity/run/local/stack.py": "LocalStack._start",
        "trinity/run/local/supervisor_client.py": "SupervisorClient.start",
        "trinity/run/monitors/feed.py": "MonitorOutage.clear_outage MonitorOutage.save_outage",
        "trinity/run/monitors/tensorboard.py": "EventFile.append_points TensorBoardMonitor._file",
        "trinity/run/monitors/wandb.py": "WandbMonitor._opened",
        "trinity/run/progress/curves.py": "draw_curves",
        "trinity/run/progress/summary.py": "write_summary",
        "trinity/runtime/device_lock.py": "_try_lock _write",
        "trinity/weights/delta.py": "_apply _write_difference write_difference",
        "trinity/weights/ledger.py": "LedgerKey.create WeightsLedger.write _create_once",
        "trinity/weights/manifest.py": "link_or_copy move_into_place seal",
        "trinity/weights/shards.py": "_ShardWriter.write_data write_shards",
        "trinity/weights/stored.py": "write_lineage",
        "services/explorer/serving/access.py": "read_or_create_key",
        "services/explorer/telemetry.py": "RunnerRouter._file",
        "services/trainer/checkpoints/best.py": "BestVersion._replace",
        "services/trainer/checkpoints/checkpoints.py": "CheckpointStore.write write_base_hash",
        "services/trainer/checkpoints/dealt.py": (
            "DealtPart._finish DealtPart._write_bucket name_files"
        ),
        "services/trainer/checkpoints/lora.py": "LoraAdapter.save",
        "services/trainer/checkpoints/set_aside.py": "LostFiles.move_unknown",
        "services/trainer/checkpoints/split.py": "PlannedFile.create _OpenFile.write write_at",
        "services/trainer/checkpoints/weights.py": (
            "ModelFiles._write_again ModelFiles._write_dtype ModelFiles.copy_from "
            "WeightsStore._describe_delta WeightsStore.create_directory "
            "WeightsStore.write_model remove_leftovers remove_tree"
        ),
        "services/trainer/checkpoints/worker_state.py": "save_state",
        "services/trainer/learner/advantages.py": "KlCoefficients.save",
        "services/trainer/learner/resume_source.py": "save_checkpoint",
        "services/trainer/learner/roles.py": "MovingReference.save",
    },
    "experiences beside the run": {
        "services/buffer/sink/targets.py": (
            "JsonLinesTarget.__init__ JsonLinesTarget._locked JsonLinesTarget._read "
            "SqlTarget.__init__ open_engine"
        ),
    },
    "file that is made": {
        "trinity/cli/adopt.py": "adopt _write_file",
        "trinity/cli/config_from_verl.py": "_write _write_text",
        "trinity/cli/config_init.py": "write_draft",
        "trinity/cli/first_steps.py": "write_example",
        "trinity/run/exports.py": "write_dataset write_parquet",
        "trinity/runtime/owned_places.py": "move_to_new working_folder write_new_file",
        "trinity/run/launch/start.py": "start_run",
        "trinity/studio/generator/start.py": "save",
        "services/explorer/debug/workflow.py": "_output",
    },
    "folder that is made": {
        "trinity/cli/certs.py": "certs",
        "trinity/run/deploy/backup.py": "_dump back_up",
        "trinity/run/deploy/render.py": (
            "ManifestRenderer._prepare ManifestRenderer.write_manifests _copy"
        ),
        "trinity/run/deploy/secret_folder.py": "write_secrets",
        "trinity/run/deploy/slurm.py": "SlurmJob.write_script",
        "trinity/run/deploy/fetch.py": "_fetch",
        "trinity/run/deploy/values.py": "write_digests write_values",
        "trinity/runtime/owned_places.py": "claim_folder mark_if_new",
        "trinity/runtime/security/certificates.py": (
            "CredentialIssuer._make_signing_key CredentialIssuer._new_authority "
            "CredentialIssuer.issue"
        ),
        "trinity/runtime/security/secret_files.py": (
            "SecretFiles.password SecretFiles.write_secret write_private"
        ),
        "trinity/verl/rows_process.py": "_write",
        "trinity/verl/written_rows.py": "write_rows",
    },
    "token": {
        "trinity/cli/token.py": "token",
    },
    "contexts": {
        "trinity/run/contexts.py": "Contexts.save",
    },
    "caches": {
        "trinity/cli/first_steps.py": "_install_hub",
        "trinity/run/local/data_juicer.py": "_make data_juicer_python",
        "services/buffer/tasksets/row_sources.py": "_note_newest",
    },
    "temporary folder and shared memory of the machine": {
        "trinity/weights/whole.py": (
            "SharedModel.whole_model _bring _change _copy _empty _hold _locked _remove_if_unused "
            "_scratch_in"
        ),
        "services/buffer/tasksets/task_pipeline.py": "TaskPipelineProcess._identity",
        "trinity/run/local/files.py": "make_socket_folder remove_socket_folder",
        "trinity/run/local/given_run.py": "_copy_database _copy_file copied_run",
        "trinity/rewards/verl_manager.py": "_Finder.__init__",
        "trinity/run/local/gpu_claims.py": "GpuClaims._safe_folder GpuClaims._take",
        "trinity/studio/generator/document.py": "check_tree document_from_verl",
        "trinity/workflows/agent_workflow.py": "_Folder.write",
        "services/explorer/debug/engine.py": "_remove",
        "services/explorer/debug/client.py": "socket_folder",
    },
    "no file of a user's": {
        "trinity/runtime/process/box.py": (
            "_be_init _bind _make_root _show enter_pid_namespace main"
        ),
        "trinity/runtime/process/exec_as.py": "_enter_namespace",
        "trinity/runtime/process/sandbox_root.py": (
            "_attach _fill_cgroup _make_root _removes _stand_outside _user_namespace main"
        ),
        "trinity/runtime/process/sandbox_server.py": "_write_file",
        "trinity/runtime/process/child_process.py": "_probe",
        "trinity/runtime/process/channel.py": "_reserve_stdout",
        "services/buffer/tasksets/allowed_files.py": "FoundPlace.open",
    },
    "developer's tools": {
        "trinity/run/reports.py": "main",
        "trinity/runtime/doc_tables.py": "write_page",
    },
}
"""The functions that write, by the row of the table of `docs/guarantees.md` that covers them."""

LOOPS: dict[str, dict[str, str]] = {
    "started again": {
        "trinity/runtime/loops.py": "LoopKeeper._clearing LoopKeeper.keep_running",
        "trinity/runtime/notifications.py": "Listener.__aenter__ Listener._run",
        "trinity/runtime/presence.py": "Heartbeats.__aenter__ Heartbeats._run",
        "services/buffer/__main__.py": "_work run_buffer",
        "services/buffer/ingest/ingest.py": "Ingest._drain Ingest._store_all Ingest.run_ingest",
        "services/buffer/maintenance.py": (
            "QueueDepthMetrics.run_metrics delete_unused_tasksets run_feedback_timeouts "
            "run_maintenance run_retention run_straggler_cutoff"
        ),
        "services/buffer/pipeline/pipeline.py": (
            "ExperiencePipeline._begin_turns ExperiencePipeline.run_pipeline"
        ),
        "services/buffer/sink/writer.py": "ExperienceSinkWriter.run_writer",
        "services/explorer/__main__.py": "_serve_leader",
        "services/explorer/control/explorer.py": "Explorer._background_tasks update_readiness",
        "services/explorer/delivery/outbox.py": "CommitReportWatcher.follow_reports",
        "services/synchronizer/__main__.py": "run",
        "services/trainer/__main__.py": "run_trainer",
        "services/trainer/control/jobs.py": (
            "TrainerReadiness.report_to_health TrainerReadiness.track_buffer "
            "TrainerReadiness.track_synchronizer"
        ),
    },
    "its process": {
        "trinity/runtime/http/listener.py": (
            "BoundedListener._accept_all BoundedListener._admit BoundedListener._sweep "
            "BoundedListener.start"
        ),
        "trinity/runtime/http/server.py": "HttpServer._keep_date HttpServer.start",
        "trinity/runtime/life.py": "LifeSigns.on_disk",
        "trinity/user_code/hubs/hub_programs/openenv_program.py": "OpenEnvProgram._serve",
        "trinity/user_code/hubs/hub_programs/program.py": "_Server.serve",
        "trinity/runtime/rpc/host_group.py": (
            "HostAgent._obey HostAgent._requests HostAgent._serve_until_lost "
            "HostAgent.serve_leader HostGroup.serve"
        ),
        "services/explorer/clients/buffer.py": "LeaseKeeper.renew_until_cancelled",
        "services/explorer/clients/watch_feed.py": "WatchFeed.follow_stream",
        "services/explorer/control/experiment.py": "ExperimentRunner._follow",
        "services/explorer/control/explorer.py": "Explorer._serve",
        "services/explorer/delivery/publisher.py": (
            "ResultPublisher._resend ResultPublisher.publish_results"
        ),
        "services/explorer/engine/hosts.py": "EngineHosts.follow_engine EngineHosts.unless_failed",
        "services/explorer/engine/scorer.py": (
            "TransformersScorer.__init__ TransformersScorer._score_batches"
        ),
        "services/explorer/engine/turns.py": (
            "EngineSharedDevice._await_device EngineSharedDevice._report "
            "EngineSharedDevice._show_life"
        ),
        "services/explorer/engine/vllm_headless.py": "main",
        "services/explorer/rollout/weight_gate.py": "WeightGate.load_when_needed",
        "services/explorer/rollout/workflow_execution.py": "LoopWatchdog.__aenter__",
        "services/explorer/serving/work.py": (
            "ServingRunner._poll_engines ServingRunner._poll_weights ServingRunner.run_stage"
        ),
        "services/trainer/checkpoints/damage.py": "DamageWatch.__init__",
        "services/trainer/__main__.py": "_serve_leader",
        "services/trainer/control/attempt.py": "StageAttempt._await_event",
        "services/trainer/control/gang.py": "Gang.__init__ Gang.stop",
        "services/trainer/control/jobs.py": "StageWatcher.follow",
        "services/trainer/control/supervisor.py": (
            "TrainingSupervisor._train TrainingSupervisor._wait_or_stop"
        ),
        "services/trainer/rank/link.py": "RankLink.from_environment",
    },
    "its call or stage": {
        "services/explorer/user_process/calls.py": "CallChannel._requests_among_replies",
        "services/explorer/user_process/model.py": "_calling_loop",
        "trinity/rewards/awaiting.py": "_loop complete",
        "trinity/rewards/math_grading.py": "GraderPool.grade GraderPool.stop_processes _loop",
        "trinity/runtime/process/calls.py": "CallServer.accept",
        "trinity/runtime/rpc/health.py": "_ClosableHealthServicer.Watch",
        "trinity/runtime/folded_log.py": "FoldingHandler._start_timer",
        "trinity/runtime/nats.py": "connect",
        "trinity/runtime/postgres.py": "Probe.check",
        "trinity/runtime/retry.py": "Retry.call_async",
        "trinity/runtime/threads.py": "DaemonThreads._start_threads",
        "trinity/user_code/hubs/process.py": (
            "HubProcess.__init__ HubProcess._read _SharedProcess._begin"
        ),
        "trinity/weights/process_group.py": "run_with_deadline",
        "trinity/weights/sending.py": "WeightsSender.__init__",
        "trinity/workflows/agent_workflow.py": "_end_kept_in",
        "trinity/workflows/generation.py": "AttemptCalls._submitted",
        "trinity/workflows/hosting.py": "HostedRuns._hosted",
        "trinity/workflows/verl_agents.py": "_event_loop run_agent",
        "services/buffer/ingest/ingest.py": "_extend_ack_deadline _extend_ack_deadline.hold",
        "services/buffer/ingest/stream.py": "RunStream._ensure_stream _connect_once",
        "services/buffer/pipeline/pipeline.py": (
            "ClaimProcessor._renewing ClaimProcessor._renewing.renew"
        ),
        "services/buffer/servicer/common.py": "LongPoller.poll_until_final",
        "services/buffer/servicer/samples.py": "SamplePages.read_pages",
        "services/buffer/servicer/trainer_calls.py": (
            "ProgressRpcs.WatchProgress TrainerRpcs._rows"
        ),
        "services/buffer/store/media.py": "delete_unused_media",
        "services/buffer/store/segments.py": "segments_batched",
        "services/buffer/tasksets/background_jobs.py": "BackgroundJobs.get_or_start",
        "services/buffer/tasksets/task_pipeline.py": "_copy _store _taken read_rows",
        "services/buffer/workers/functions.py": "FunctionRunner._answer",
        "services/explorer/debug/client.py": "EngineConnection.__init__",
        "services/explorer/debug/engine.py": "serve_models.connected",
        "services/explorer/debug/workflow.py": "_Trial.run",
        "services/explorer/delivery/outbox.py": "CommitDeadline.enforce_deadline",
        "services/explorer/engine/interface.py": (
            "EnginePool.load_weights EnginePool.receive_weights"
        ),
        "services/explorer/engine/in_flight.py": "unless_cancelled",
        "services/explorer/engine/vllm.py": "VllmEngine._stream",
        "services/explorer/engine/weight_transfer.py": "WeightLoader._await_with_health_checks",
        "services/explorer/openai_api/handler.py": "EventStream.send_answer",
        "services/explorer/rollout/runner.py": (
            "AttemptRunner._once_begun DeadlineTasks.run_with_deadline"
        ),
        "services/explorer/rollout/scheduler.py": (
            "LongRunReporter.report_long_runs StageScheduler._execute_assignment "
            "StageScheduler._lease_loop StageScheduler._request_work_or_stop "
            "StageScheduler._start_assignment StageScheduler.run_stage"
        ),
        "services/explorer/rollout/user_process_pool.py": "CallBatch.__init__",
        "services/explorer/rollout/user_processes.py": "UserProcess.read",
        "services/synchronizer/watching.py": "WatchStreams.stream",
    },
    "launchers and viewers": {
        "trinity/client/async_tasksets.py": "AsyncTasksets.list AsyncTasksets.submit",
        "trinity/run/diagnosis/gather.py": "_ask_services",
        "trinity/run/launch/follow.py": (
            "ExperimentFollower._read_events_again ExperimentFollower._until_not_running "
            "ExperimentFollower.until_ended watched"
        ),
        "trinity/run/launch/messages.py": "report_stalls report_startup",
        "trinity/run/launch/run.py": (
            "GracefulShutdown.guard GracefulShutdown.unless_pressed_again LocalRun._beside.keep "
            "LocalRun._first_completed PhaseTimer.save_periodically"
        ),
        "trinity/client/background_loop.py": "BackgroundLoop.__init__ BackgroundLoop.start",
        "trinity/run/handle.py": "AsyncRun.follow",
        "trinity/run/local/infrastructure.py": "Infrastructure.start_embedded",
        "trinity/run/local/postgres.py": (
            "PostgresServer._connect_when_up PostgresServer.wait_ready"
        ),
        "trinity/run/local/stack.py": (
            "LocalStack._end_refusing_processes LocalStack._launch_together LocalStack._start "
            "LocalStack._unless_failed LocalStack._watch_restart"
        ),
        "trinity/run/local/supervisor_client.py": "SupervisorClient.__init__",
        "trinity/run/local/supervisor.py": "_serve_commands",
        "trinity/run/monitors/feed.py": (
            "MonitorFeed._call_monitor MonitorFeed._read_forever MonitorFeed._write_forever "
            "MonitorFeed.feed_forever"
        ),
        "trinity/studio/connection.py": "RunConnection._with_stopped _beside",
        "trinity/studio/context.py": "ViewedRun.follow ViewedRun.watch_members",
        "trinity/studio/server.py": "serve",
    },
}
"""The functions that start or are loops, by the row that says what a failure of theirs does."""


def declared(table: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for files in table.values():
        for file, names in files.items():
            found.setdefault(file, set()).update(names.split())
    return found


@pytest.mark.parametrize(("table", "look"), [(PLACES, places), (LOOPS, loops)])
def test_every_place_and_every_loop_is_declared(
    table: Mapping[str, Mapping[str, str]], look: object
) -> None:
    found = found_in_source(look)  # type: ignore[arg-type]
    known = declared(table)
    assert {file: names - known.get(file, set()) for file, names in found.items()} == {
        file: set() for file in found
    }, "declare what is new"
    assert {file: names - found.get(file, set()) for file, names in known.items()} == {
        file: set() for file in known
    }, "these are gone"


def rows(name: str) -> list[str]:
    """The first cells of a table of the page."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    [table] = re.findall(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", page, re.DOTALL)
    return [line.split("|")[1].strip().strip("*`") for line in table.splitlines()[2:]]


def test_the_page_has_a_row_for_each_kind() -> None:
    assert {kind.strip("*`") for kind in PLACES} == set(rows("places"))
    assert set(LOOPS) == set(rows("loops"))


def test_the_page_names_every_loop_that_is_started_again() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    named = {FEEDBACK_TIMEOUTS, STRAGGLER_CUTOFF}
    for part in (buffer.Components.loops, TrainerReadiness.loops, LocalRun._beside):
        named |= set(re.findall(r'"([a-z ]+)":', inspect.getsource(part)))
    for file in (ROOT / "services").rglob("*.py"):
        named |= set(re.findall(r'keep_running\(\s*"([a-z ]+)"', file.read_text(encoding="utf-8")))
    assert {name for name in named if f"`{name}`" not in page} == set()
    assert len(named) > 12


@as_subtests(
    "text",
    [
        *("open(path, 'w')", "open(path, mode='ab')", "path.open('x')", "path.open('r+b')"),
        *("path.open('w' if new else 'x')", "path.write_text(text)", "path.write_bytes(body)"),
        *("path.unlink()", "path.rename(other)", "path.replace(other)", "os.replace(a, b)"),
        *("os.rename(a, b)", "os.remove(path)", "os.open(path, os.O_RDWR | os.O_CREAT)"),
        *("os.open(path, flags)", "shutil.rmtree(path)", "shutil.move(a, b)", "shutil.copy(a, b)"),
        *("path.mkdir()", "path.touch()", "path.symlink_to(other)", "file.truncate(0)"),
        *("os.ftruncate(fd, 0)", "Base.metadata.create_all(engine)", "os.fdopen(fd, 'w')"),
        "table.to_parquet(path)",
    ],
)
def test_the_search_finds_each_way_to_write(text: str) -> None:
    assert found_in(f"class A:\n    def f(self):\n        {text}", places) == {
        "A.f": [ast.unparse(ast.parse(text)).partition("(")[0].rpartition(".")[2]]
    }


@as_subtests(
    "text",
    [
        *("open(path)", "path.open('rb')", "text.replace('a', 'b')", "replace(plan, name='a')"),
        *("os.open(path, os.O_RDONLY)", "moment.replace(tzinfo=UTC)", "connection.touch()"),
        "os.fdopen(fd, 'rb')",
    ],
)
def test_the_search_finds_nothing_in_what_reads(text: str) -> None:
    assert found_in(f"def f():\n    {text}", places) == {}


@pytest.mark.parametrize(
    "text",
    [
        *("tasks.create_task(loop())", "asyncio.ensure_future(loop())"),
        *("threading.Thread(target=f).start()", "while True:\n        await sleep(1)"),
        "keeper.keep_running('a', loop)",
    ],
)
def test_the_search_finds_each_way_to_begin_a_loop(text: str) -> None:
    assert set(found_in(f"async def f():\n    {text}", loops)) == {"f"}
    assert found_in("async def f():\n    await call()", loops) == {}
