import time, psutil, asyncio
from tests.integration.buffer.harness import *
from tests.integration.buffer.plans import *
from tests.integration.buffer.conftest import *
from tests.unit.config.builders import stage
async def test_bench(own_process, postgres_dsn, tmp_path):
    import psycopg
    with psycopg.connect(postgres_dsn,autocommit=True) as cc: cc.execute("ALTER ROLE buffer SET log_min_duration_statement=40")
    own_process.kill()
    await own_process.start()
    async with talk_to(own_process) as own_buffer:
        await go(own_buffer, own_process, tmp_path)
async def go(own_buffer, own_process, tmp_path):
    b=own_buffer
    plan=stage(algorithm={"repeat_times":8},buffer={"batch_size":32,"total_steps":30,"train_batch_size":256,"explorer_input":{"taskset":{"name":"train","path":write_tasks(tmp_path/"t.jsonl",1000)},"eval_tasksets":[{"name":"e","path":write_tasks(tmp_path/"e.jsonl",1000)}]}},explorer={"eval_interval":100})
    await b.open(plan); await b.begin(); await b.record(0)
    tl=[];ti=[];tb=[]
    p=psutil.Process(own_process.process.pid)
    w=await b.lease(32)
    print("rss", p.memory_info().rss/2**20)
    c0=p.cpu_times(); 
    for step in range(1,16):
        t0=time.perf_counter()
        if step>1: w=await b.lease(32)
        t1=time.perf_counter()
        res=[b.complete(a,r,Made(reward=float(r%2))) for a in w.assignments for r in a.runs]
        t1b=time.perf_counter()
        for i in range(0,256,32): await b.publish(*res[i:i+32])
        h,rows=await b.batch(step); assert h.num_rows==256
        t2=time.perf_counter()
        await b.report(step); await b.record(step)
        t3=time.perf_counter()
        tl.append(t1-t0);ti.append(t2-t1b);tb.append(t3-t2)
        if step==1:
            print("first cycle", t2-t1b)
        # eat evals
        if step==1:
            t=time.perf_counter()
            while True:
                w2=await b.lease(200,wait_seconds=0)
                ev=[a for a in w2.assignments if a.kind==2]; 
                if not ev: w=w2; break
                await b.settle(*[b.complete(a,0) for a in ev])
            print("1000 evals", time.perf_counter()-t)
            # w are step-2 train
            step2=w
            async def fake(*a,**k): return step2
            orig=b.lease
            first=[True]
            async def lease(n,_o=orig,**k):
                if first[0]: first[0]=False; return step2
                return await _o(n,**k)
            object.__setattr__(b,'lease',lease) if False else setattr(type(b),'lease',lambda self,n=100,**k: lease(n,**k))
    c1=p.cpu_times()
    print("lease",[round(x*1e3) for x in tl]); print("publish->batch",[round(x*1e3) for x in ti]); print("report+record",[round(x*1e3) for x in tb])
    print("cpu s", c1.user-c0.user, c1.system-c0.system, "rss", p.memory_info().rss/2**20)
