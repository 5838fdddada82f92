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
    "lookup",
    "parent",
    "path",
    "getattr",
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
    "host_path",
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
///         forward: root checks_access is_read_only opens_host_files largest_file transactions content identity lookup parent path
///             getattr readlink readdir open read_at create tmpfile mknod mkdir symlink link link_open rename write write_at truncate
///             fallocate sync host_path setattr flags statfs getxattr setxattr listxattr removexattr;
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
///         forward: root checks_access is_read_only opens_host_files largest_file transactions content identity lookup parent path
///             getattr readlink readdir open read_at create tmpfile mknod mkdir symlink link link_open rename write write_at truncate
///             fallocate sync host_path setattr flags statfs getxattr setxattr listxattr removexattr;
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
    (root $lower:ident $($check:tt)*) => {
        fn root(&self) -> $crate::Node {
            $($check)*
            self.$lower.root()
        }
    };
    (kind $lower:ident $($check:tt)*) => {
        fn kind(&self) -> &'static str {
            $($check)*
            self.$lower.kind()
        }
    };
    (checks_access $lower:ident $($check:tt)*) => {
        fn checks_access(&self) -> bool {
            $($check)*
            self.$lower.checks_access()
        }
    };
    (is_read_only $lower:ident $($check:tt)*) => {
        fn is_read_only(&self) -> bool {
            $($check)*
            self.$lower.is_read_only()
        }
    };
    (opens_host_files $lower:ident $($check:tt)*) => {
        fn opens_host_files(&self) -> bool {
            $($check)*
            self.$lower.opens_host_files()
        }
    };
    (largest_file $lower:ident $($check:tt)*) => {
        fn largest_file(&self) -> u64 {
            $($check)*
            self.$lower.largest_file()
        }
    };
    (transactions $lower:ident $($check:tt)*) => {
        fn transactions(&self) -> ::std::option::Option<&dyn $crate::Transactions> {
            $($check)*
            self.$lower.transactions()
        }
    };
    (content $lower:ident $($check:tt)*) => {
        fn content(&self) -> ::std::option::Option<&dyn $crate::CachedContent> {
            $($check)*
            self.$lower.content()
        }
    };
    (identity $lower:ident $($check:tt)*) => {
        fn identity(&self) -> ::std::option::Option<&dyn $crate::Identity> {
            $($check)*
            self.$lower.identity()
        }
    };
    (lookup $lower:ident $($check:tt)*) => {
        fn lookup(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<$crate::Node> {
            $($check)*
            self.$lower.lookup(caller, dir, name)
        }
    };
    (parent $lower:ident $($check:tt)*) => {
        fn parent(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
        ) -> $crate::Result<$crate::Node> {
            $($check)*
            self.$lower.parent(caller, dir)
        }
    };
    (path $lower:ident $($check:tt)*) => {
        fn path(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<(::std::vec::Vec<u8>, bool)> {
            $($check)*
            self.$lower.path(caller, node)
        }
    };
    (getattr $lower:ident $($check:tt)*) => {
        fn getattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<$crate::Attr> {
            $($check)*
            self.$lower.getattr(caller, node)
        }
    };
    (readlink $lower:ident $($check:tt)*) => {
        fn readlink(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<::std::vec::Vec<u8>> {
            $($check)*
            self.$lower.readlink(caller, node)
        }
    };
    (readdir $lower:ident $($check:tt)*) => {
        fn readdir(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            cookie: u64,
            sink: &mut dyn FnMut($crate::DirEntry<'_>) -> bool,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.readdir(caller, dir, cookie, sink)
        }
    };
    (open $lower:ident $($check:tt)*) => {
        fn open(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            flags: i32,
        ) -> $crate::Result<$crate::Opened> {
            $($check)*
            self.$lower.open(caller, node, flags)
        }
    };
    (read_at $lower:ident $($check:tt)*) => {
        fn read_at(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            offset: u64,
            buf: &mut [u8],
        ) -> $crate::Result<usize> {
            $($check)*
            self.$lower.read_at(caller, node, offset, buf)
        }
    };
    (create $lower:ident $($check:tt)*) => {
        fn create(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
            mode: u32,
            flags: i32,
        ) -> $crate::Result<($crate::Node, $crate::Opened)> {
            $($check)*
            self.$lower.create(caller, dir, name, mode, flags)
        }
    };
    (tmpfile $lower:ident $($check:tt)*) => {
        fn tmpfile(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            mode: u32,
            flags: i32,
        ) -> $crate::Result<($crate::Node, $crate::Opened)> {
            $($check)*
            self.$lower.tmpfile(caller, dir, mode, flags)
        }
    };
    (mknod $lower:ident $($check:tt)*) => {
        fn mknod(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
            mode: u32,
            rdev: u64,
        ) -> $crate::Result<$crate::Node> {
            $($check)*
            self.$lower.mknod(caller, dir, name, mode, rdev)
        }
    };
    (mkdir $lower:ident $($check:tt)*) => {
        fn mkdir(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
            mode: u32,
        ) -> $crate::Result<$crate::Node> {
            $($check)*
            self.$lower.mkdir(caller, dir, name, mode)
        }
    };
    (symlink $lower:ident $($check:tt)*) => {
        fn symlink(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
            target: &[u8],
        ) -> $crate::Result<$crate::Node> {
            $($check)*
            self.$lower.symlink(caller, dir, name, target)
        }
    };
    (link $lower:ident $($check:tt)*) => {
        fn link(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            dir: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.link(caller, node, dir, name)
        }
    };
    (link_open $lower:ident $($check:tt)*) => {
        fn link_open(
            &self,
            caller: &$crate::Caller,
            file: ::std::os::fd::BorrowedFd<'_>,
            dir: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.link_open(caller, file, dir, name)
        }
    };
    (unlink $lower:ident $($check:tt)*) => {
        fn unlink(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.unlink(caller, dir, name)
        }
    };
    (rmdir $lower:ident $($check:tt)*) => {
        fn rmdir(
            &self,
            caller: &$crate::Caller,
            dir: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.rmdir(caller, dir, name)
        }
    };
    (rename $lower:ident $($check:tt)*) => {
        fn rename(
            &self,
            caller: &$crate::Caller,
            from_dir: &$crate::Node,
            from: &[u8],
            to_dir: &$crate::Node,
            to: &[u8],
            flags: u32,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower
                .rename(caller, from_dir, from, to_dir, to, flags)
        }
    };
    (write $lower:ident $($check:tt)*) => {
        fn write(
            &self,
            caller: &$crate::Caller,
            file: $crate::OpenFile<'_>,
            spot: $crate::WritePosition,
            data: &[u8],
        ) -> $crate::Result<usize> {
            $($check)*
            self.$lower.write(caller, file, spot, data)
        }
    };
    (write_at $lower:ident $($check:tt)*) => {
        fn write_at(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            offset: u64,
            data: &[u8],
        ) -> $crate::Result<usize> {
            $($check)*
            self.$lower.write_at(caller, node, offset, data)
        }
    };
    (truncate $lower:ident $($check:tt)*) => {
        fn truncate(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            size: u64,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.truncate(caller, node, size)
        }
    };
    (fallocate $lower:ident $($check:tt)*) => {
        fn fallocate(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            mode: i32,
            offset: u64,
            len: u64,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.fallocate(caller, node, mode, offset, len)
        }
    };
    (sync $lower:ident $($check:tt)*) => {
        fn sync(&self, node: ::std::option::Option<&$crate::Node>) -> $crate::Result<()> {
            $($check)*
            self.$lower.sync(node)
        }
    };
    (host_path $lower:ident $($check:tt)*) => {
        fn host_path(&self, node: &$crate::Node) -> ::std::option::Option<::std::path::PathBuf> {
            $($check)*
            self.$lower.host_path(node)
        }
    };
    (setattr $lower:ident $($check:tt)*) => {
        fn setattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            set: &$crate::SetAttr,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.setattr(caller, node, set)
        }
    };
    (flags $lower:ident $($check:tt)*) => {
        fn flags(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<u32> {
            $($check)*
            self.$lower.flags(caller, node)
        }
    };
    (statfs $lower:ident $($check:tt)*) => {
        fn statfs(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<$crate::StatFs> {
            $($check)*
            self.$lower.statfs(caller, node)
        }
    };
    (getxattr $lower:ident $($check:tt)*) => {
        fn getxattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<::std::vec::Vec<u8>> {
            $($check)*
            self.$lower.getxattr(caller, node, name)
        }
    };
    (setxattr $lower:ident $($check:tt)*) => {
        fn setxattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            name: &[u8],
            value: &[u8],
            flags: i32,
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.setxattr(caller, node, name, value, flags)
        }
    };
    (listxattr $lower:ident $($check:tt)*) => {
        fn listxattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
        ) -> $crate::Result<::std::vec::Vec<::std::vec::Vec<u8>>> {
            $($check)*
            self.$lower.listxattr(caller, node)
        }
    };
    (removexattr $lower:ident $($check:tt)*) => {
        fn removexattr(
            &self,
            caller: &$crate::Caller,
            node: &$crate::Node,
            name: &[u8],
        ) -> $crate::Result<()> {
            $($check)*
            self.$lower.removexattr(caller, node, name)
        }
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
            name.split('(').next()
        });
        assert_eq!(names.collect::<Vec<_>>(), METHODS);
    }
}
