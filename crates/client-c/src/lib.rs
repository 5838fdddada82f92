//! libamino, the C library. `include/amino.h` is its documentation.

mod abi;
mod text;
