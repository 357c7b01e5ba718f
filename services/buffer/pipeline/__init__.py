"""The experience pipeline: claims complete groups and computes their advantages."""
