#!/bin/sh
# Adds a user to passwd and shadow in one transaction: a program sees both lines or none, whatever happens in between.
#
#     amino run -- examples/passwd/adduser.sh DIR NAME HASH
#
# DIR holds passwd and shadow. Exit status: 0 added, 1 not added, 125 not under amino.
set -eu

if [ "${1-}" != --inside ]; then
    [ $# -eq 3 ] || { echo "usage: $0 DIR NAME HASH" >&2; exit 2; }
    # Run again after a conflict with another adduser.
    exec amino txn run --retry 5 -- sh "$0" --inside "$@"
fi
shift
dir=$1 name=$2 hash=$3

case $name in
*[!a-z0-9_-]* | [!a-z_]* | '') echo "$0: $name: not a user name" >&2; exit 1 ;;
esac
found=0
grep "^$name:" "$dir/passwd" "$dir/shadow" >/dev/null || found=$?
case $found in
0) echo "$0: $name: exists already" >&2; exit 1 ;;
1) ;;
*) exit 1 ;; # Could not be read: perhaps a conflict, so try again.
esac

# The highest number in use and one more; no other adduser can take it before we commit.
uid=$(awk -F: 'BEGIN { max = 999 } $3 > max && $3 < 60000 { max = $3 } END { print max + 1 }' "$dir/passwd")
day=$(($(date +%s) / 86400))

echo "$name:x:$uid:$uid::/home/$name:/bin/sh" >>"$dir/passwd"
# Any failure from here on takes the line above away again.
echo "$name:$hash:$day:0:99999:7:::" >>"$dir/shadow"
