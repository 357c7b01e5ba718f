"""All instruments; docs/observability.md has the table."""

from trinity.telemetry.metrics import Counter, Gauge, Histogram, Observed

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)

SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from start to end", bounds=LONG)
REWARD = Histogram(
    "rl.reward.value", "1", "Reward of a sample", bounds=(-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2)
)
LOOP_SECONDS = Histogram(
    "rl.loop.duration", "s", "A train step with its wait for the batch", bounds=LONG
)
TRAIN_SECONDS = Histogram("rl.train.duration", "s", "A train step's training", bounds=LONG)
SYNC_SECONDS = Histogram("rl.sync.duration", "s", "Weights published or loaded", bounds=LONG)

GENERATE_SECONDS = Histogram(
    "gen_ai.client.operation.duration", "s", "A call of the rollout engine", bounds=LONG
)
GENERATE_TOKENS = Histogram(
    "gen_ai.client.token.usage", "{token}", "Tokens in and out of a call", bounds=TOKENS
)

SERVER_SECONDS = Histogram("rpc.server.call.duration", "s", "A call answered", bounds=SHORT)
CLIENT_SECONDS = Histogram("rpc.client.call.duration", "s", "A call made", bounds=SHORT)

RUNS_GOING_ON = Observed("trinity.explorer.runs", "{run}", "Runs leased and not over")
UNCONFIRMED = Observed(
    "trinity.explorer.unconfirmed", "{result}", "Results whose commit is not reported yet"
)
UNCONFIRMED_SECONDS = Observed(
    "trinity.explorer.unconfirmed.age", "s", "For how long the oldest of them has waited"
)
CONFIRM_SECONDS = Histogram(
    "trinity.publish.duration", "s", "From a result's end to the report of its commit", bounds=LONG
)
GATE_SECONDS = Histogram(
    "trinity.weights.wait.duration", "s", "A run's wait for the weights it needs", bounds=LONG
)
TRANSFERS = Counter(
    "trinity.weights.transfers", "{transfer}", "Weights taken from memory, or from files after all"
)
LOADED_VERSION = Gauge("trinity.weights.loaded", "{version}", "Version in the engine")

LEASED = Counter("trinity.lease.assignments", "{assignment}", "Assignments handed out")
CREDIT = Observed("trinity.credit.rows", "{row}", "Rows that may still be outstanding or ready")
OUTSTANDING = Observed("trinity.rows.outstanding", "{row}", "Runs and rows on their way to a batch")
READY = Observed("trinity.rows.ready", "{row}", "Rows that wait for a batch")
STREAM_PENDING = Observed("trinity.stream.pending", "{message}", "Messages not stored yet")
STORED = Counter("trinity.store.results", "{result}", "Results stored, by what became of them")
STORE_SECONDS = Histogram(
    "trinity.store.duration", "s", "A transaction that stores results", bounds=SHORT
)
SHAPED = Counter("trinity.pipeline.groups", "{group}", "Groups shaped")
SHAPE_SECONDS = Histogram(
    "trinity.pipeline.duration", "s", "Groups shaped together, to their commit", bounds=SHORT
)
BATCH_ROWS = Counter("trinity.batch.rows", "{row}", "Rows composed into batches")

STALENESS = Histogram(
    "trinity.batch.staleness", "{version}", "Train step less a row's oldest version", bounds=AGES
)
TRAINED_TOKENS = Counter("trinity.train.tokens", "{token}", "Tokens of trained batches")
BATCH_WAIT_SECONDS = Histogram(
    "trinity.batch.wait.duration", "s", "A train step's wait for its batch", bounds=LONG
)
TRAINED_STEP = Gauge("trinity.train.step", "{step}", "Newest train step reported")

WAIT_SECONDS = Observed(
    "trinity.wait.duration", "s", "Waits going on, the longest of each owner and reason"
)
