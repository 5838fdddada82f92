#!/bin/sh
# A transaction in which a step is tried, given up and replaced by another one.
#
#     amino run -- examples/nested.sh DIR
set -eu
dir=${1:?usage: $0 DIR}

# Whatever ends this shell before the commit aborts: nothing of it stays.
amino txn begin >/dev/null
mkdir -p "$dir"
echo "version 2" >"$dir/config"

# The attempt: a transaction in the transaction.
amino txn begin >/dev/null
if cp /nonexistent/plugins.tar "$dir/" 2>/dev/null && echo "plugins yes" >>"$dir/config"; then
    amino txn commit
else
    # Takes back what the attempt did, and only that.
    amino txn abort
    echo "plugins no" >>"$dir/config"
fi

amino txn commit
cat "$dir/config"
