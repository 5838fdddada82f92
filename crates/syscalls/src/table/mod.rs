//! The signatures of all system calls. The rows: `rows.rs`; what they are made of: `param.rs`.

mod param;
mod rows;

use crate::Operation;
use crate::numbers::SystemCall;
use crate::signature::{Class, Kind, Param, Returns, Signature};

pub use rows::SIGNATURES;

/// The signature of call `nr`.
pub fn signature(nr: u32) -> Option<&'static Signature> {
    let index = SIGNATURES.binary_search_by_key(&nr, |one| one.nr).ok()?;
    SIGNATURES.get(index)
}

/// The signature of the call with this name.
pub fn by_name(name: &str) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|one| one.name == name)
}

impl Signature {
    /// Whether the call concerns files, descriptors, mappings, sockets, the working directory, the file mode creation mask or the process tree.
    pub const fn concerns_files(&self) -> bool {
        !self.class.is_empty()
    }

    /// The index of the first parameter with this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }
}

/// A row: what its parameters and its result say of the call is added to `class`.
const fn row(
    call: SystemCall,
    operation: Operation,
    class: Class,
    returns: Returns,
    params: &'static [Param],
) -> Signature {
    let mut all = class;
    if matches!(returns, Returns::Descriptor) {
        all = all.union(Class::DESCRIPTOR);
    }
    let mut index = 0;
    while index < params.len() {
        all = all.union(match params[index].kind {
            Kind::Path(_) => Class::PATH,
            Kind::Descriptor | Kind::Directory | Kind::DescriptorPair => Class::DESCRIPTOR,
            _ => Class::empty(),
        });
        index += 1;
    }
    Signature {
        nr: call.nr,
        name: call.name,
        operation,
        class: all,
        params,
        returns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_without_repeats_and_have_six_arguments_at_most() {
        assert!(SIGNATURES.windows(2).all(|pair| pair[0].nr < pair[1].nr));
        let arguments = |one: &Signature| {
            let params = one.params.iter();
            params
                .filter(|param| !matches!(param.kind, Kind::Copied { .. }))
                .count()
        };
        assert!(SIGNATURES.iter().all(|one| arguments(one) <= 6));
    }

    #[test]
    fn indices_name_arguments_that_are_numbers_or_addresses() {
        use crate::signature::{Extent, LastLink};
        for one in SIGNATURES {
            for param in one.params {
                let index = match param.kind {
                    Kind::Input(Extent::Argument(at)) | Kind::Output(Extent::Argument(at)) => at,
                    Kind::Input(Extent::Items { count: at, .. }) => at,
                    Kind::Output(Extent::Items { count: at, .. } | Extent::Pointed(at)) => at,
                    Kind::InputVector(at) | Kind::OutputVector(at) => at,
                    Kind::InputMessages(at) | Kind::OutputMessages(at) => at,
                    Kind::InputSocketAddress(at) | Kind::OutputSocketAddress(at) => at,
                    Kind::InputStructure(_, Some(at)) | Kind::OutputText(at) => at,
                    Kind::Path(
                        LastLink::FollowedUnlessAt(at)
                        | LastLink::KeptUnlessAt(at)
                        | LastLink::ByOpenFlags(at)
                        | LastLink::ByOpenHow(at),
                    ) => at,
                    _ => continue,
                };
                let target = one.params.get(usize::from(index));
                assert!(
                    target.is_some_and(|target| match param.kind {
                        Kind::Path(LastLink::ByOpenHow(_)) =>
                            matches!(target.kind, Kind::InputStructure(..)),
                        Kind::Path(_) => matches!(target.kind, Kind::Flags(_)),
                        Kind::Output(Extent::Pointed(_)) | Kind::OutputSocketAddress(_) =>
                            matches!(target.kind, Kind::Address),
                        Kind::InputVector(_)
                        | Kind::OutputVector(_)
                        | Kind::InputMessages(_)
                        | Kind::OutputMessages(_) => matches!(target.kind, Kind::Count),
                        _ => matches!(target.kind, Kind::Size | Kind::Count | Kind::Signed),
                    }),
                    "{} {}",
                    one.name,
                    param.name
                );
            }
        }
    }
}
