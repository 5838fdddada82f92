#!/usr/bin/env python3
"""Begins a transaction, prints its identifier, writes a part, waits for the other writer, and commits.

    owner.py DIR        see share.sh
"""

import os
import sys

import amino


def main(dir):
    with amino.transaction() as transaction:
        print(transaction.id, flush=True)
        with open(os.path.join(dir, "part 1"), "w") as file:
            file.write("from the owner\n")
        # The helper closes our input when it has written its part.
        sys.stdin.read()
        # In one transaction each sees what the other wrote.
        with open(os.path.join(dir, "part 2")) as file:
            print("committing:", file.read(), end="", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
