//! Whether AMX tiles can be used: by the processor, the system, and with its permission.

use super::avx512;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

/// Whether processor and system grant tiles to this process. Asking the system is what grants it.
pub(crate) fn available() -> bool {
    static GRANTED: LazyLock<bool> =
        LazyLock::new(|| avx512::available() && supported() && grant());
    *GRANTED
}

/// Tile and int8 bits of the processor, and tile state enabled by the system. (The leaf that
/// describes the tiles may be hidden by a hypervisor that passes the instructions on.)
fn supported() -> bool {
    let features = __cpuid_count(7, 0).edx;
    let saves = __cpuid(1).ecx >> 27 & 1 == 1;
    if !saves || features >> 24 & 0b11 != 0b11 {
        return false;
    }
    let enabled: u32;
    // SAFETY: `xgetbv` exists because the system saves extended states.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    enabled >> 17 & 0b11 == 0b11
}

/// Asks Linux for the use of tile data: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn grant() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of ours.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA, out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// Other systems: not tried.
#[cfg(not(target_os = "linux"))]
fn grant() -> bool {
    false
}
