packages="os path/filepath io/ioutil"

get() {
    local root package
    root=$(go env GOROOT)
    for package in $packages; do
        mkdir -p "$package"
        # The tests read their own sources. -L: Debian's GOROOT has links.
        cp -rL "$root/src/$package/." "$package"
        (cd "$root/src/$package" && go test -c -o "$OLDPWD/$package/judge.test" .)
    done
}

run() {
    local package
    for package in $packages; do
        mkdir -p "$package"
        cp -r "$SUITE/$package/." "$package"
        echo "=== PACKAGE $package"
        (cd "$package" && ./judge.test -test.v -test.short -test.timeout 10m)
    done
}
