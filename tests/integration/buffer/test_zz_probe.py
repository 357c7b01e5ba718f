import asyncio, os, signal, subprocess, time
from pathlib import Path
import grpc, psutil, psycopg, pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.buffer.harness import Buffer, BufferProcess, Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.rpc.channel import open_channel
Lease = pb.LeaseAssignmentsResponse

def commits(dsn):
    with psycopg.connect(dsn, autocommit=True) as c:
        c.execute("select pg_stat_clear_snapshot()")
        return c.execute("select xact_commit from pg_stat_database where datname=current_database()").fetchone()[0]

async def test_hot_loop(own_buffer: Buffer, own_process: BufferProcess, buffer_dsn, tmp_path):
    b = own_buffer
    await b.open(rollout_plan(tmp_path)); await b.begin(); await b.record(0)
    await b.lease(lease_seconds=0.2)
    await b.begin()  # trainer restarted, replays, has not published
    await asyncio.sleep(1.5)
    p = psutil.Process(own_process.process.pid)
    c0, t0 = commits(buffer_dsn), sum(p.cpu_times()[:2])
    ans = await b.lease(wait_seconds=5)
    await asyncio.sleep(1.5)
    c1, t1 = commits(buffer_dsn), sum(p.cpu_times()[:2])
    print("HOT", ans.state, ans.reason, "commits", c1 - c0, "buffer cpu s", t1 - t0, "in 5 s")

async def test_failed_stage(buffer: Buffer, tmp_path):
    b = buffer
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)  # short_batch: train, the default
    await b.open(plan); await b.begin(); await b.record(0)
    for one in (await b.lease()).assignments:
        await b.settle(*(b.fail(one, r, a) for r in (0, 1) for a in (0, 1)))
    head, _ = await b.batch(1)
    print("FAILED head", pb.BatchHead.State.Name(head.state), head.reason)
    await b.open(plan)
    try:
        await b.begin(); print("begin ok")
    except grpc.aio.AioRpcError as e:
        print("RESUME begin:", e.code(), e.details())
    l = await b.lease()
    print("RESUME lease:", Lease.State.Name(l.state), l.reason)

async def test_rejected(buffer: Buffer, tmp_path):
    b = buffer
    await b.open(rollout_plan(tmp_path)); await b.begin(); await b.record(0)
    target = None
    for n in range(5):
        work = (await b.lease(lease_seconds=0.2)).assignments
        one = next(w for w in work if target in (None, w.id)); target = one.id
        bad = b.complete(one, 0)
        bad.experiences[0].version_spans[0].end = 2
        [rep] = await b.settle(bad)
        await asyncio.sleep(0.4)
        print("REJECTED try", n, one.first_attempt, list(one.runs), pb.CommitReport.State.Name(rep.state), rep.reason)

async def test_watch_all(buffer: Buffer, tmp_path):
    b = buffer
    await b.open(rollout_plan(tmp_path)); await b.begin(); await b.record(0)
    await b.finish_all((await b.lease()).assignments)
    s = b.stub.WatchCommits(pb.WatchCommitsRequest(producer=b.explorer_id), timeout=10)
    async for m in s:
        print("WATCH empty request gave", len(m.reports)); break
    s.cancel()

async def test_discard(buffer: Buffer):
    info = await buffer.broker.jetstream().stream_info("TRINITY_RUNS")
    print("DISCARD", info.config.discard, info.config.max_bytes)

async def test_frozen(own_process: BufferProcess, buffer_dsn, postgres_server):
    pidfile = next(Path(postgres_server.folder).rglob("postmaster.pid"))
    pm = psutil.Process(int(pidfile.read_text().split()[0]))
    procs = [pm, *pm.children(recursive=True)]
    for p in procs: p.suspend()
    try:
        async with open_channel(own_process.address) as ch:
            stub = health_pb2_grpc.HealthStub(ch)
            for _ in range(12):
                await asyncio.sleep(1)
                r = await stub.Check(health_pb2.HealthCheckRequest(service="trinity.api.v1.BufferService"), timeout=2)
            print("FROZEN after 12 s:", health_pb2.HealthCheckResponse.ServingStatus.Name(r.status))
    finally:
        for p in procs: p.resume()
