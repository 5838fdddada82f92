//! The error of all decoders.

/// Bytes that are not what the layout says they must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("damaged {record}: {why} at byte {offset}")]
pub struct DecodeError {
    /// Name of the expected layout, such as `path record`.
    pub record: &'static str,
    /// Offset, in bytes from the start of the record, where decoding failed.
    pub offset: usize,
    /// What is wrong there.
    pub why: &'static str,
}
