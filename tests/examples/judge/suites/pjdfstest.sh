get() {
    cargo install --root . --locked --version 0.2.2 pjdfstest
    cat > config.toml <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
}

run() {
    "$SUITE/bin/pjdfstest" --configuration-file "$SUITE/config.toml" --secondary-fs /dev/shm --path .
}
