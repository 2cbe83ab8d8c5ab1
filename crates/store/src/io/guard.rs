//! Mapped files that shrink under us: an error that names the file instead of a dead process.
//!
//! Touching a page of a mapped file that was cut raises SIGBUS. The handler here looks whether the address lies in
//! a mapping of this module. If so it puts zero pages in the place of the whole mapping, marks the mapping and lets
//! the thread go on, with wrong bytes. Code that computes from a mapping therefore asks [`GuardedMap::is_cut`] before
//! it hands a result on. Every other fault goes to the handler that was there before (the standard library's, which
//! reports overflowing stacks), so that a fault of ours still ends the process.
//!
//! The handler does only what a signal handler may: it reads atomics and makes one system call.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A file mapped for reading.
pub(crate) struct GuardedMap {
    map: Mmap,
    #[cfg(target_os = "linux")]
    entry: &'static linux::Entry,
}

impl GuardedMap {
    /// Maps a whole file.
    ///
    /// # Errors
    /// What the system says, and more mappings than the table of the handler holds.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes are plain data without validity rules, the mapping is read-only, and a file that is
        // cut is replaced by zero pages before the access returns. Another process that writes to the file changes
        // the bytes: every user compares size and times of the file before it believes what it computed.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            entry: linux::register(map.as_ptr().addr(), map.len())?,
            map,
        })
    }

    /// The mapping, for its bytes and for advice.
    pub(crate) fn map(&self) -> &Mmap {
        &self.map
    }

    /// True when the file was cut and bytes beyond its end were asked for: what was computed since is wrong.
    pub(crate) fn is_cut(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.entry.is_cut();
        #[cfg(not(target_os = "linux"))]
        return false;
    }
}

#[cfg(target_os = "linux")]
impl Drop for GuardedMap {
    fn drop(&mut self) {
        // Before the mapping goes: its addresses may be another's afterwards.
        self.entry.release();
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    /// Mappings at once: files of a checkpoint; the largest have some hundreds.
    const ENTRIES: usize = 4096;
    const FREE: u8 = 0;
    const CLAIMED: u8 = 1;
    const LIVE: u8 = 2;

    /// One mapping as the handler sees it.
    pub(super) struct Entry {
        state: AtomicU8,
        start: AtomicUsize,
        end: AtomicUsize,
        cut: AtomicBool,
    }

    static TABLE: [Entry; ENTRIES] = [const {
        Entry {
            state: AtomicU8::new(FREE),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
        }
    }; ENTRIES];

    /// What handled the signal before.
    static PREVIOUS: OnceLock<io::Result<libc::sigaction>> = OnceLock::new();

    /// Enters a mapping into the table; installs the handler with the first one.
    pub(super) fn register(start: usize, bytes: usize) -> io::Result<&'static Entry> {
        if let Err(error) = PREVIOUS.get_or_init(install) {
            return Err(io::Error::new(error.kind(), format!("no handler for faults: {error}")));
        }
        let claim = |entry: &&Entry| {
            let exchanged =
                entry.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            exchanged.is_ok()
        };
        let entry = TABLE.iter().find(claim).ok_or_else(|| {
            io::Error::other(format!("more than {ENTRIES} mapped files; use --load read"))
        })?;
        entry.cut.store(false, Ordering::Relaxed);
        entry.start.store(start, Ordering::Relaxed);
        entry.end.store(start + bytes, Ordering::Relaxed);
        // Publishes the bounds to a handler that sees the entry live.
        entry.state.store(LIVE, Ordering::Release);
        Ok(entry)
    }

    impl Entry {
        pub(super) fn is_cut(&self) -> bool {
            self.cut.load(Ordering::Acquire)
        }

        pub(super) fn release(&self) {
            self.state.store(FREE, Ordering::Release);
        }

        fn holds(&self, address: usize) -> bool {
            self.state.load(Ordering::Acquire) == LIVE
                && (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed))
                    .contains(&address)
        }
    }

    fn install() -> io::Result<libc::sigaction> {
        // SAFETY: all fields of the structure are integers, for which zero is a value.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        ours.sa_sigaction = handler as usize;
        // On the alternative stack, as the standard library's handler, which ours may call, needs it.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures live through the call, and the handler has the signature that SA_SIGINFO asks for
        // and does only what is allowed in a signal handler.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) } {
            0 => Ok(before),
            _ => Err(io::Error::last_os_error()),
        }
    }

    extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel hands a valid structure to a handler installed with SA_SIGINFO, and SIGBUS has an
        // address in it.
        let address = unsafe { (*info).si_addr() }.addr();
        if let Some(entry) = TABLE.iter().find(|entry| entry.holds(address))
            && replace(entry)
        {
            return;
        }
        // Without the handler installed this function does not run; a first fault during the installation
        // finds no entry and no predecessor and must not return to where it would fault again.
        let Some(Ok(before)) = PREVIOUS.get() else { std::process::abort() };
        forward(before, signal, info, context);
    }

    /// Puts zero pages where the file was. The thread that faulted holds a borrow of the mapping, so it is
    /// not unmapped meanwhile.
    fn replace(entry: &Entry) -> bool {
        let start = entry.start.load(Ordering::Relaxed);
        let bytes = entry.end.load(Ordering::Relaxed) - start;
        let place = std::ptr::with_exposed_provenance_mut(start);
        entry.cut.store(true, Ordering::Release);
        // SAFETY: the range is a mapping of this module, which is only read; its owner unmaps it in the end,
        // whatever lies there.
        let mapped = unsafe {
            mmap_anonymous(place, bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED)
        };
        mapped.is_ok()
    }

    /// What would have happened without us.
    fn forward(
        before: &libc::sigaction,
        signal: c_int,
        info: *mut libc::siginfo_t,
        context: *mut c_void,
    ) {
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: as in `install`; the access is repeated after the return and ends the process.
                unsafe {
                    let mut default: libc::sigaction = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the predecessor was installed with SA_SIGINFO, so it has this signature.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: the predecessor was installed without SA_SIGINFO, so it has this signature.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::hint::black_box;
    use std::io::Write;

    use super::*;

    fn file(bytes: usize) -> File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![7; bytes]).expect("room for it");
        file
    }

    #[test]
    fn a_cut_file_reads_as_zero_and_says_so() {
        let (cut, whole) = (file(1 << 20), file(1 << 20));
        let [map, other] = [&cut, &whole].map(|file| GuardedMap::new(file).expect("it is mapped"));
        assert!(map.map().iter().all(|&byte| byte == 7) && !map.is_cut());
        cut.set_len(4096).expect("it is cut");
        // Several threads meet the lost pages at once.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let map = &map;
                scope.spawn(move || assert_eq!(black_box(map.map()[500_000 + 4096 * thread]), 0));
            }
        });
        assert!(map.is_cut() && !other.is_cut());
        assert!(other.map().iter().all(|&byte| byte == 7));
        // The place in the table is free for another file.
        drop(map);
        assert!(!GuardedMap::new(&whole).expect("it is mapped").is_cut());
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process() {
        if std::env::var_os("FLASHMOE_FAULT").is_some() {
            let guarded = GuardedMap::new(&file(4096)).expect("it is mapped");
            let cut = file(1 << 20);
            // SAFETY: the file is cut under the mapping on purpose: the fault is what is tested.
            let map = unsafe { Mmap::map(&cut) }.expect("it is mapped");
            cut.set_len(0).expect("it is cut");
            black_box(map[500_000] + guarded.map()[0]);
            return;
        }
        use std::os::unix::process::ExitStatusExt;
        let this = std::env::current_exe().expect("this program has a path");
        let status = std::process::Command::new(this)
            .args(["--exact", "io::guard::tests::a_fault_elsewhere_ends_the_process"])
            .env("FLASHMOE_FAULT", "1")
            .output()
            .expect("it runs")
            .status;
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }
}
