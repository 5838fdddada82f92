#!/bin/sh
# Two programs that know only an identifier of one another write one transaction.
#
#     amino run -- examples/shared/share.sh DIR HELPER
#
# HELPER is helper.c, compiled; PYTHONPATH leads to amino.py.
set -eu
dir=${1:?usage: $0 DIR HELPER} helper=${2:?usage: $0 DIR HELPER}
here=$(dirname "$0")
mkdir -p "$dir"

pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/in" "$pipes/out"
python3 "$here/owner.py" "$dir" <"$pipes/in" >"$pipes/out" &
owner=$!
exec 3>"$pipes/in" 4<"$pipes/out"

read -r id <&4
"$helper" "$id" "$dir"

# To look at the parts from here, outside of the transaction, would mean to wait for its end: they are locked.
exec 3>&-
wait "$owner"
cat "$dir/part 1" "$dir/part 2"
