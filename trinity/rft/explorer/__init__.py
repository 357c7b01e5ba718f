"""Modules of Trinity-RFT's explorer that programs outside of a run import."""
