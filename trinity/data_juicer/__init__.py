"""Data-Juicer behind HTTP: its server runs in an environment of its own, the client here.

Trinity-RFT's data service has the same calls, so that either side can be the other's.
"""
