"""Tests of parts that are classes written for Trinity-RFT."""
