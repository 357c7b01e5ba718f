"""Tests of `trinity.run.local` that start nothing."""
