//! The error of all decoders.

/// Bytes that do not have the expected layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("damaged {record}: {why} at byte {offset}")]
pub struct DecodeError {
    /// Name of the expected layout, such as `path record`.
    pub record: &'static str,
    /// Offset, in bytes from the start of the record, where decoding failed.
    pub offset: usize,
    /// The error there.
    pub why: &'static str,
}
