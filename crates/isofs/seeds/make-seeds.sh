#!/usr/bin/env bash
# Makes the seeds of the fuzzer: small images of genisoimage and xorriso, packed (see seed.rs), one of them with what no
# writer makes (attributes.py). Made again they differ in a few bytes, since the programs write the time into them.
#
#     crates/isofs/seeds/make-seeds.sh [DIRECTORY]     # images/ beside this script by default
set -euo pipefail
export LC_ALL=C.UTF-8 TZ=UTC
readonly most_bytes=300000
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seeds=$(realpath -m "${1:-$here/images}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$seeds"
cd "$work"

# keep NAME IMAGE
keep() {
    python3 "$here/pack.py" "$2" > "$seeds/$1"
}

# iso NAME TREE OPTION...
iso() {
    local name=$1 tree=$2
    shift 2
    timeout 60 genisoimage -quiet -no-pad "$@" -o "$name.iso" "$tree"
    keep "genisoimage-$name" "$name.iso"
}

# burn NAME TREE COMMAND... -- COMMAND after the tree is mapped...
burn() {
    local name=$1 tree=$2 before=()
    shift 2
    while [[ $# -gt 0 && $1 != after ]]; do
        before+=("$1")
        shift
    done
    shift || true
    rm -f "$name.iso"
    timeout 60 xorriso -report_about FATAL -padding 0 -outdev "$name.iso" "${before[@]}" -map "$tree" / "$@" -commit 2> xorriso.log || { cat xorriso.log >&2; exit 1; }
    keep "xorriso-$name" "$name.iso"
}

# Something of everything, and nothing large.
mkdir -p tree/dir/sub tree/void
echo hello > tree/readme.txt
: > tree/empty
echo unicode > "tree/dir/Grüße 日本"
echo latin > "$(printf 'tree/dir/latin-\344')"
echo long > "tree/$(printf 'n%.0s' {1..248})"
ln tree/readme.txt tree/dir/hard
ln -s ../readme.txt tree/dir/up
ln -s /etc/./passwd tree/absolute
ln -s "$(printf 'some/where/%.0s' {1..15})end" tree/dir/long
mkfifo tree/fifo
chmod 4755 tree/readme.txt

mkdir -p deep/1/2/3/4/5/6/7/8/9/10
echo bottom > deep/1/2/3/4/5/6/7/8/9/10/f
mkdir -p ascii/dir
echo one > ascii/one.txt
echo two > ascii/dir/two.tar.gz
mkdir empty
mkdir packed
printf "compressible\n%.0s" {1..6000} > packed/text
head -c 140000 /dev/zero > packed/zeros
mkdir boot
head -c 512 /dev/zero | tr '\0' b > boot/bios.img
head -c 512 /dev/zero | tr '\0' e > boot/efi.img
mkdir -p attributed/dir
for n in {0..7}; do echo "content $n" > "attributed/file$n.txt"; done
echo below > attributed/dir/below.txt
mkdir many
for n in {1..40}; do : > "many/a rather long name $n"; done

iso rock-ridge tree -R
iso deep deep -R
iso deep-unmoved deep -R -D
iso joliet ascii -J -joliet-long
iso both ascii -R -J
for level in 1 4; do
    iso "level-$level" ascii -iso-level "$level"
done
iso empty empty -R
iso many many -R
iso udf ascii -R -udf
iso boot boot -R -b bios.img -c catalog -no-emul-boot
iso hidden ascii -R -hidden one.txt -hide two.tar.gz
mkzftree packed unpacked
iso zisofs unpacked -R -z

timeout 60 genisoimage -quiet -no-pad -J -o attributes.iso attributed
python3 "$here/attributes.py" attributes.iso
keep attributes attributes.iso

# A second session, as growisofs adds one.
blocks=$(( ($(stat -c %s both.iso) / 2048 + 15) / 16 * 16 ))
truncate -s $((blocks * 2048)) both.iso
timeout 60 genisoimage -quiet -no-pad -R -J -C "0,$blocks" -M both.iso -o more.iso -graft-points more=empty
cat more.iso >> both.iso
keep genisoimage-sessions both.iso

burn rock-ridge tree -hardlinks on
burn joliet ascii -joliet on
burn deep deep -compliance deep_paths_off -rr_reloc_dir moved
burn zisofs packed after -set_filter_r --zisofs / --
burn zisofs-2 packed -zisofs version_2=on:susp_z2=on:bpt_target=1k after -set_filter_r --zisofs / --
burn boot boot after -boot_image any bin_path=/bios.img -boot_image any next -boot_image any platform_id=0xef \
    -boot_image any bin_path=/efi.img
burn sessions ascii
timeout 60 xorriso -report_about FATAL -padding 0 -dev sessions.iso -map deep /deep -commit 2> xorriso.log
keep xorriso-sessions sessions.iso

bytes=$(cat "$seeds"/* | wc -c)
echo "$(find "$seeds" -type f | wc -l) seeds, $bytes bytes" >&2
[[ $bytes -le $most_bytes ]] || { echo "make-seeds.sh: more than $most_bytes bytes" >&2; exit 1; }
