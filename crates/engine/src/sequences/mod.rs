//! What sequences carry from token to token, and the points that they can go on from. No driver is known here.

pub(crate) mod page_rows;
