"""Runtime parts that services share: Postgres, NATS, settings, logs, threads, heartbeats."""
