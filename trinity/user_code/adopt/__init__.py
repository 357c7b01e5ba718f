"""Reads a fork of Trinity-RFT, without importing it, and loads the parts that a manifest lists."""
