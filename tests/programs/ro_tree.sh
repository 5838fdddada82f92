# A tree with what calls can be wrong about, in the working directory; a link leads to the directory $1.
set -e; umask 022
echo hello > a; mkdir d bin empty private noread nox mydir sticky setgid; ln a d/hard; echo file > d/f; : > nothing; seq 100000 > large
for f in secret mine mine0400 mine0200 mine0000 private/f noread/f nox/f mydir/f sticky/theirs sticky/mine setgid/f suid; do echo "$f" > $f; done
mkdir mydir/full; echo x > mydir/full/x; mkdir -p 1/2/3/4/5/6/7/8/9; echo bottom > 1/2/3/4/5/6/7/8/9/f
ln -s a link; ln -s d dlink; ln -s missing dangling; ln -s loop loop; ln -s .. d/up; ln -s d/up uplink; ln -s "$1" abslink
ln -s . dotlink; ln -s private/f privlink; ln -s ../a sticky/link
ln -s a l1; for i in $(seq 2 41); do ln -s l$((i-1)) l$i; done; ln -s l39 forty; ln -s l40 fortyone
mkfifo fifo nofifo sticky/fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
mknod null c 1 3; mknod nodevice b 240 200; mknod nullzero c 0 0 || true
cp /usr/bin/echo bin/tool; printf '#!/bin/sh\necho script "$0" "$@"; exit 5\n' > bin/script; cp bin/script bin/noexec; cp /usr/bin/echo bin/onlyx
printf '\177ELFnonsense' > bin/bad; : > bin/nothing; printf '#!/no/such\n' > bin/lost; ln -s tool bin/link; printf '#!bin/tool within\n' > bin/within
printf '#! /usr/bin/env sh\necho env "$0" "$@"\n' > bin/env; printf '#!/bin/%0300d\n' 0 > bin/long
n=0123456789; n=$n$n$n$n$n; n=$n$n; echo long > $n; printf x > "$(printf '\n\\\377')"; echo x > 'with blank'
chmod 755 bin/*; chmod 644 bin/noexec; chmod 111 bin/onlyx; chmod 600 secret nofifo; chmod 666 fifo sticky/fifo sock null; chmod 400 mine0400; chmod 200 mine0200; chmod 000 mine0000
chmod 700 private; chmod 711 noread; chmod 744 nox; chmod 1777 sticky; chmod 2775 setgid; chmod 4755 suid; chmod 666 sticky/*e*s
chown 65534:65534 mine* mydir mydir/* sticky/mine
find . -exec touch -h -d @1000000000 {} +
