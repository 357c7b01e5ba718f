"""Tests of Studio with real processes."""
