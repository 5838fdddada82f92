get() {
    cargo install --root . --locked --version 0.3.2 fsx
    cat > config.toml <<'END'
[weights]
close_open = 1
fsync = 1
fdatasync = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 10
posix_fallocate = 2
posix_fadvise = 2
punch_hole = 5
sendfile = 5
copy_file_range = 5
END
}

run() {
    for seed in 1 2 3 4 5 6 7 8; do
        check "seed-$seed" "$SUITE/bin/fsx" -f "$SUITE/config.toml" -N 5000 -S $seed "file-$seed"
    done
}
