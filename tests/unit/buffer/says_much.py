"""Reads no rows, but writes one as a reader would, and before it more than any pipe holds."""

import sys

if __name__ == "__main__":
    sys.stdin.read()
    sys.stderr.write("this takes long\n" * 64 * 1024)
    sys.stderr.flush()
    sys.stdout.write('{"prompt": "1+1="}\n')
    sys.stdout.flush()
    sys.exit("there is no second row")
