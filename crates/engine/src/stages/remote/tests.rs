//! Messages against arbitrary bytes.
