//! Generic operations (in work).
