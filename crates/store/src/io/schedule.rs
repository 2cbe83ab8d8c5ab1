//! Lets I/O threads run as soon as there is something to submit or to deliver.
//!
//! While a layer is computed every core is busy, and Linux (EEVDF, since 6.6) lets a woken thread wait for the end of
//! a slice of milliseconds: the reads that computation is to hide begin late. A thread that asks for a
//! short slice goes first (since 6.12) and, sleeping nearly all the time, takes nothing away. Cold decode of the
//! 35B shape in 4 GiB went from 8.4 to 8.8 tok/s; real-time priority, which needs rights, gave no more.

/// Asks for the shortest slice that the kernel grants. Advice: other systems and kernels do without.
pub(super) fn ask_for_short_slices() {
    #[cfg(target_os = "linux")]
    {
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            // Kept as it is: of the calling thread, in Linux.
            nice: rustix::process::getpriority_process(None).unwrap_or(0),
            priority: 0,
            runtime_ns: SLICE_NS,
            deadline_ns: 0,
            period_ns: 0,
        };
        // SAFETY: the call reads `size` bytes of a structure that lives until it returns, and changes nothing but
        // the calling thread's own scheduling (thread 0 is the caller).
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// The least that the kernel takes, 0.1 ms.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` as of Linux 3.14 (sched_setattr(2)).
#[cfg(target_os = "linux")]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}
