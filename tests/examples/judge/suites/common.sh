# What the scripts of all suites share. A script defines two functions:
#
#   get   makes the suite in the working directory, a new directory of the cache; it may use the network
#   run   runs the suite in the working directory, an empty directory in the place under test; get's directory is $SUITE
#
# TMPDIR is a directory in the place, too. get runs with the environment of the caller, run with a small one.

# Reports the outcome of a case, for the format `lines`: pass, skip, or fail with a reason. Names have no blanks.
outcome() {
    printf '==> %s %s\n' "$1" "$2"
}

# Reports the outcome of a case that is a command: its status.
check() {
    local name=$1 status=0
    shift
    "$@" || status=$?
    if [ $status -eq 0 ]; then
        outcome "$name" pass
    else
        outcome "$name" "fail (status $status)"
    fi
}

# Unpacks Debian packages below root/, with the packages that they need and the machine lacks. Installs nothing.
deb() {
    local needed
    needed=$(apt-get install --simulate --no-install-recommends "$@" | awk '/^Inst /{print $2}')
    mkdir -p root packages
    # shellcheck disable=SC2086
    (cd packages && apt-get download $(printf '%s\n' "$@" $needed | sort -u))
    for package in packages/*.deb; do
        dpkg-deb --extract "$package" root
    done
    rm -r packages
}

# Downloads the upstream sources of a Debian package, as tar archives, from the release that the machine runs.
deb_source() {
    local release apt
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p apt/lists/partial
    echo "deb-src http://deb.debian.org/debian $release main" > apt/sources.list
    apt=(apt-get -o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$PWD/apt/lists"
        -o "Dir::Cache=$PWD/apt")
    "${apt[@]}" update
    "${apt[@]}" source --download-only --only-source "$1"
    rm -r apt
}
