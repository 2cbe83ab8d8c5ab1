//! The process's heap, told to give memory back.
//!
//! glibc keeps what was freed: up to eight arenas for each processor, and blocks of up to 32 MiB once one of that size
//! was freed. A server that has parsed a few large requests would hold gigabytes of nothing for ever, against a budget
//! that counts them once. Fewer arenas and a fixed size from which blocks are the kernel's bound what is kept; what
//! is left at the top of the arenas is given back on demand. An allocator of another make would do it as well,
//! at the price of a dependency in C.

/// From this size on a block is mapped for itself, and given back as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES: libc::c_int = 512 << 10;
/// Arenas: threads that serve seldom meet, and those that compute do not allocate.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: libc::c_int = 2;

/// Bounds what the heap keeps. To be called before the first thread is started.
pub fn configure() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two integers, touches the allocator's own parameters only and may be called at any time;
    // a parameter that it does not know leaves everything as it is.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives back what is free. Takes milliseconds: for use after work that took much memory.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim locks the arenas it looks at and returns only pages of free blocks; no pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}
