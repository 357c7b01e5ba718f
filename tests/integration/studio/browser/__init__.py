"""Tests of Studio in Chromium."""
