"""Reinforcement fine-tuning of language models: what users import and extend."""

__version__ = "0.1.0"
