//! Host memory that stays where it is: what a device may be given the address of.
//!
//! It stands in the lowest crate so that the crate that owns such memory and the one that pins it need not know each
//! other.

/// Memory that stays mapped at one address.
///
/// # Safety
/// For as long as the value lives, `range` gives the same range, all of it is mapped, and its pages are not given to
/// anything else.
pub unsafe trait StableMemory: Send + Sync {
    /// The first byte and the number of bytes. What others may do to them meanwhile is for the owner to say: the range
    /// is an address, not permission to read or write.
    fn range(&self) -> (*const u8, usize);
}
