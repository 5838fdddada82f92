get() {
    local version
    version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    deb "libpython$version-testsuite"
    # The package adds to the few files of `test` that the interpreter's own package has.
    mkdir lib
    cp -r "/usr/lib/python$version/test" lib
    cp -r "root/usr/lib/python$version/test" lib
    rm -r root
}

modules="test_os test_posix test_fileio test_io test_shutil test_tempfile test_mmap test_glob test_pathlib test_fcntl test_file"

run() {
    export PYTHONPATH=$SUITE/lib PYTHONDONTWRITEBYTECODE=1
    local module
    for module in $modules; do
        /usr/bin/python3 -m test --timeout 300 --junit-xml "$TMPDIR/$module.xml" "$module"
        cat "$TMPDIR/$module.xml"
        echo
    done
}
