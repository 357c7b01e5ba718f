"""Reads a request, starts a child that holds on to all pipes, and never answers."""

import os
import sys
import time

HOLD_SECONDS = 120

if __name__ == "__main__":
    sys.stdin.readline()
    if os.fork() == 0:
        if sys.argv[1] == "1":
            os.setsid()
        time.sleep(HOLD_SECONDS)
    time.sleep(HOLD_SECONDS)
