//! The `flashmoe` command line.
#![forbid(unsafe_code)]

fn main() {}
