"""Data-Juicer over HTTP: the server runs in its own environment, the client here.

Trinity-RFT's data service has the same calls, so client and server of both are interchangeable.
"""
