get() {
    deb stress-ng
}

# The classes filesystem and io, without what concerns no file system that a program works on: bind-mount binderfs eventfd ioprio
# procfs rawdev.
stressors="access aio aiol chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl fiemap
file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io io-uring iomix lease link locka lockf lockofd
mknod open readahead rename revio seek symlink sync-file touch utime verity xattr"

run() {
    export LD_LIBRARY_PATH=$SUITE/root/usr/lib/x86_64-linux-gnu
    for stressor in $stressors; do
        local status=0 said
        mkdir "$stressor"
        said=$(timeout --kill-after=5 30 "$SUITE/root/usr/bin/stress-ng" --temp-path "$PWD/$stressor" --verify --timeout 3 \
            "--$stressor" 1 "--$stressor-ops" 20 2>&1) || status=$?
        echo "$said"
        # 3: no resources; 4: not implemented. A stressor that is skipped can end with 0 as well.
        case $status,$said in
            [034],*skipp* | [34],*) outcome "$stressor" skip ;;
            0,*) outcome "$stressor" pass ;;
            *) outcome "$stressor" "fail (status $status)" ;;
        esac
    done
}
