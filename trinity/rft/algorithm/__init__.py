"""Algorithms and their parts as Trinity-RFT has them: classes and registries by its names."""
