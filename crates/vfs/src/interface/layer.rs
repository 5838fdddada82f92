//! Layers: file systems on top of another one.
//!
//! A layer owns the lower file system, such as an `Arc<dyn FileSystem>`, and decides for each method of [`FileSystem`](crate::FileSystem)
//! whether [`forward`](crate::forward) calls the lower one, or the layer answers itself. A method that is forwarded by accident would show
//! names and data of the lower file system, and one that falls back to its default by accident would answer EROFS. So a
//! method that a layer does not name is a compile error.

/// The methods of [`FileSystem`](crate::FileSystem), in the trait's order.
pub const METHODS: &[&str] = &[
    "kind",
    "root",
    "checks_access",
    "is_read_only",
    "opens_host_files",
    "largest_file",
    "transactions",
    "content",
    "identity",
    "shared_attributes",
    "lookup",
    "parent",
    "path",
    "getattr",
    "getattr_at",
    "readlink",
    "readdir",
    "open",
    "read_at",
    "create",
    "tmpfile",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "link_open",
    "unlink",
    "rmdir",
    "rename",
    "write",
    "write_at",
    "truncate",
    "fallocate",
    "sync",
    "behind_link",
    "host_path",
    "on_host",
    "host_file",
    "host_dir",
    "setattr",
    "flags",
    "statfs",
    "getxattr",
    "setxattr",
    "listxattr",
    "removexattr",
];

/// Writes methods of a layer's `impl FileSystem` that call the lower file system with the same arguments.
///
/// `lower` names the field that holds it. `forward` lists the methods to write, `own` those that the layer has itself or leaves to
/// their defaults. Together they must be all methods of the trait ([`METHODS`](crate::layer::METHODS)), each once.
///
/// ```
/// # use goanna_vfs::*;
/// # use std::sync::Arc;
/// /// A file system whose files cannot be removed.
/// struct Keep {
///     lower: Arc<dyn FileSystem>,
/// }
///
/// impl FileSystem for Keep {
///     forward! {
///         lower: lower;
///         forward: root checks_access is_read_only opens_host_files largest_file transactions content identity shared_attributes lookup parent
///             path getattr getattr_at readlink readdir open read_at create tmpfile mknod mkdir symlink link link_open rename write write_at truncate
///             fallocate sync behind_link host_path on_host host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
///         own: kind unlink rmdir;
///     }
///
///     fn kind(&self) -> &'static str {
///         "keep"
///     }
///
///     fn unlink(&self, _: &Caller, _: &Node, _: &[u8]) -> Result<()> {
///         Err(Errno::EPERM.into())
///     }
///
///     fn rmdir(&self, _: &Caller, _: &Node, _: &[u8]) -> Result<()> {
///         Err(Errno::EPERM.into())
///     }
/// }
/// ```
///
/// Without `unlink` in one of the lists this does not compile:
///
/// ```compile_fail
/// # use goanna_vfs::*;
/// # use std::sync::Arc;
/// # struct Keep { lower: Arc<dyn FileSystem> }
/// impl FileSystem for Keep {
///     forward! {
///         lower: lower;
///         forward: root checks_access is_read_only opens_host_files largest_file transactions content identity shared_attributes lookup parent
///             path getattr getattr_at readlink readdir open read_at create tmpfile mknod mkdir symlink link link_open rename write write_at truncate
///             fallocate sync behind_link host_path on_host host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
///         own: kind rmdir;
///     }
///
///     fn kind(&self) -> &'static str {
///         "keep"
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    (lower: $lower:ident; forward: $first:ident $($method:ident)*; own: $($own:ident)*;) => {
        $crate::forward_method!($first $lower
            const _: () = assert!(
                $crate::layer::are_all_methods(&[
                    stringify!($first), $(stringify!($method),)* $(stringify!($own),)*
                ]),
                "each method of FileSystem must be in one of the lists, once"
            );
        );
        $($crate::forward_method!($method $lower);)*
    };
}

/// One method of [`forward`](crate::forward).
#[doc(hidden)]
#[macro_export]
macro_rules! forward_method {
    (@ [$lower:ident $($check:tt)*] $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($arg: $type),*) -> $result {
            $($check)*
            self.$lower.$name($($arg),*)
        }
    };
    (root $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] root() -> $crate::Node } };
    (kind $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] kind() -> &'static str } };
    (checks_access $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] checks_access() -> bool } };
    (is_read_only $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] is_read_only() -> bool } };
    (opens_host_files $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] opens_host_files() -> bool } };
    (largest_file $($of:tt)*) => { $crate::forward_method! { @ [$($of)*] largest_file() -> u64 } };
    (transactions $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            transactions() -> ::std::option::Option<&dyn $crate::Transactions> }
    };
    (content $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            content() -> ::std::option::Option<&dyn $crate::CachedContent> }
    };
    (identity $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            identity() -> ::std::option::Option<&dyn $crate::Identity> }
    };
    (shared_attributes $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            shared_attributes() -> ::std::option::Option<&dyn $crate::SharedAttributes> }
    };
    (lookup $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            lookup(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8]) -> $crate::Result<$crate::Node> }
    };
    (parent $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            parent(caller: &$crate::Caller, dir: &$crate::Node) -> $crate::Result<$crate::Node> }
    };
    (path $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            path(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<(::std::vec::Vec<u8>, bool)> }
    };
    (getattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            getattr(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<$crate::Attr> }
    };
    (getattr_at $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            getattr_at(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8]) -> $crate::Result<::std::option::Option<$crate::Attr>> }
    };
    (readlink $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            readlink(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<::std::vec::Vec<u8>> }
    };
    (readdir $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            readdir(caller: &$crate::Caller, dir: &$crate::Node, cookie: u64, sink: &mut dyn FnMut($crate::DirEntry<'_>) -> bool) -> $crate::Result<()> }
    };
    (open $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            open(caller: &$crate::Caller, node: &$crate::Node, flags: i32) -> $crate::Result<$crate::Opened> }
    };
    (read_at $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            read_at(caller: &$crate::Caller, node: &$crate::Node, offset: u64, buf: &mut [u8]) -> $crate::Result<usize> }
    };
    (create $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            create(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8], mode: u32, flags: i32) -> $crate::Result<($crate::Node, $crate::Opened)> }
    };
    (tmpfile $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            tmpfile(caller: &$crate::Caller, dir: &$crate::Node, mode: u32, flags: i32) -> $crate::Result<($crate::Node, $crate::Opened)> }
    };
    (mknod $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            mknod(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8], mode: u32, rdev: u64) -> $crate::Result<$crate::Node> }
    };
    (mkdir $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            mkdir(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8], mode: u32) -> $crate::Result<$crate::Node> }
    };
    (symlink $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            symlink(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8], target: &[u8]) -> $crate::Result<$crate::Node> }
    };
    (link $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            link(caller: &$crate::Caller, node: &$crate::Node, dir: &$crate::Node, name: &[u8]) -> $crate::Result<()> }
    };
    (link_open $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            link_open(caller: &$crate::Caller, file: ::std::os::fd::BorrowedFd<'_>, dir: &$crate::Node, name: &[u8]) -> $crate::Result<()> }
    };
    (unlink $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            unlink(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8]) -> $crate::Result<()> }
    };
    (rmdir $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            rmdir(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8]) -> $crate::Result<()> }
    };
    (rename $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            rename(caller: &$crate::Caller, from_dir: &$crate::Node, from: &[u8], to_dir: &$crate::Node, to: &[u8], flags: u32) -> $crate::Result<()> }
    };
    (write $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            write(caller: &$crate::Caller, file: $crate::OpenFile<'_>, position: $crate::WritePosition, data: &[u8]) -> $crate::Result<usize> }
    };
    (write_at $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            write_at(caller: &$crate::Caller, node: &$crate::Node, offset: u64, data: &[u8]) -> $crate::Result<usize> }
    };
    (truncate $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            truncate(caller: &$crate::Caller, node: &$crate::Node, size: u64) -> $crate::Result<()> }
    };
    (fallocate $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            fallocate(caller: &$crate::Caller, node: &$crate::Node, mode: i32, offset: u64, len: u64) -> $crate::Result<()> }
    };
    (sync $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            sync(node: ::std::option::Option<&$crate::Node>) -> $crate::Result<()> }
    };
    (behind_link $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            behind_link(caller: &$crate::Caller, dir: &$crate::Node, name: &[u8]) -> $crate::Result<$crate::Node> }
    };
    (host_path $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            host_path(node: &$crate::Node) -> ::std::option::Option<::std::path::PathBuf> }
    };
    (on_host $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            on_host(node: &$crate::Node) -> ::std::option::Option<$crate::OnHost> }
    };
    (@host [$lower:ident $($check:tt)*] $name:ident) => {
        fn $name<'n>(&self, node: &'n $crate::Node) -> ::std::option::Option<::std::os::fd::BorrowedFd<'n>> {
            $($check)*
            self.$lower.$name(node)
        }
    };
    (host_file $($of:tt)*) => { $crate::forward_method! { @host [$($of)*] host_file } };
    (host_dir $($of:tt)*) => { $crate::forward_method! { @host [$($of)*] host_dir } };
    (setattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            setattr(caller: &$crate::Caller, node: &$crate::Node, set: &$crate::SetAttr) -> $crate::Result<()> }
    };
    (flags $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            flags(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<u32> }
    };
    (statfs $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            statfs(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<$crate::StatFs> }
    };
    (getxattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            getxattr(caller: &$crate::Caller, node: &$crate::Node, name: &[u8]) -> $crate::Result<::std::vec::Vec<u8>> }
    };
    (setxattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            setxattr(caller: &$crate::Caller, node: &$crate::Node, name: &[u8], value: &[u8], flags: i32) -> $crate::Result<()> }
    };
    (listxattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            listxattr(caller: &$crate::Caller, node: &$crate::Node) -> $crate::Result<::std::vec::Vec<::std::vec::Vec<u8>>> }
    };
    (removexattr $($of:tt)*) => {
        $crate::forward_method! { @ [$($of)*]
            removexattr(caller: &$crate::Caller, node: &$crate::Node, name: &[u8]) -> $crate::Result<()> }
    };
}

/// Whether `named` has each of [`METHODS`] once and nothing else.
pub const fn are_all_methods(named: &[&str]) -> bool {
    if named.len() != METHODS.len() {
        return false;
    }
    let mut at = 0;
    while at < METHODS.len() {
        let mut count = 0;
        let mut other = 0;
        while other < named.len() {
            if are_equal(METHODS[at].as_bytes(), named[other].as_bytes()) {
                count += 1;
            }
            other += 1;
        }
        if count != 1 {
            return false;
        }
        at += 1;
    }
    true
}

const fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_methods_are_those_of_the_trait() {
        let (_, methods) = include_str!("fs.rs")
            .split_once("pub trait FileSystem")
            .expect("the trait is there");
        let names = methods.lines().filter_map(|line| {
            let name = line.strip_prefix("    fn ")?;
            name.split(['(', '<']).next()
        });
        assert_eq!(names.collect::<Vec<_>>(), METHODS);
    }
}
