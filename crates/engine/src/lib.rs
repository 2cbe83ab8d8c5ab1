//! Models, sequences, sampling and text.
#![forbid(unsafe_code)]
