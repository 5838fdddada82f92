//! The C library of recoverable memory. `crates/rvm/include/amino_rvm.h` is its documentation.

mod abi;
