"""Tests of `trinity.local` that start nothing."""
