//! Rows of a table under faults.
