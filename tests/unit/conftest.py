"""Fixtures of all tests of single parts."""

from tests.unit.clock import clock as clock
