//! Gives the shared library its soname: the major version is the ABI's.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libamino.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
