"""Reads no rows, but answers with one as a reader would, and says more than any pipe holds."""

import sys

from trinity.runtime.process.channel import RequestChannel

if __name__ == "__main__":
    channel = RequestChannel()
    next(channel.requests())
    sys.stderr.write("this takes long\n" * 64 * 1024)
    sys.stderr.flush()
    row = b'{"prompt": "1+1="}\n'
    channel.write({"num_bytes": len(row)}, row)
    channel.write({"error": "there is no second row"})
