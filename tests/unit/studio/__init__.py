"""Tests of Trinity Studio."""
