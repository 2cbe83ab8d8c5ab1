//! A job object: a process that is ended with this one, whose memory is bounded from outside.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::process::Child;

use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_ACTIVE_PROCESS,
    JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectExtendedLimitInformation, QueryInformationJobObject, SetInformationJobObject,
    TerminateJobObject,
};

use super::checked;

/// Bytes of the structure that limits are set with.
const LIMIT_BYTES: u32 = size_of::<JOBOBJECT_EXTENDED_LIMIT_INFORMATION>() as u32;

/// A job object. Dropping it ends what runs in it.
#[derive(Debug)]
pub struct Job(OwnedHandle);

impl Job {
    /// An empty job whose processes may commit `bytes` of memory each.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(bytes: u64) -> io::Result<Self> {
        // SAFETY: neither rights nor a name are passed; the result is checked before it is used.
        let handle = unsafe { CreateJobObjectW(std::ptr::null(), std::ptr::null()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle was made just now and belongs to nothing else.
        let job = Self(unsafe { OwnedHandle::from_raw_handle(handle) });
        job.limit_memory(bytes)?;
        Ok(job)
    }

    /// Puts a process into the job. It must not have begun to work.
    ///
    /// # Errors
    /// The system refuses it: the process has ended, or is in a job that allows no other.
    pub fn take(&self, process: &Child) -> io::Result<()> {
        // SAFETY: both handles are open for the whole call.
        checked(unsafe {
            AssignProcessToJobObject(self.0.as_raw_handle(), process.as_raw_handle())
        })
    }

    /// Lets its processes commit `bytes` of memory each, from now on.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        // A crash opens no window; no process starts another.
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_PROCESS_MEMORY
            | JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
            | JOB_OBJECT_LIMIT_DIE_ON_UNHANDLED_EXCEPTION
            | JOB_OBJECT_LIMIT_ACTIVE_PROCESS;
        limits.BasicLimitInformation.ActiveProcessLimit = 1;
        limits.ProcessMemoryLimit = usize::try_from(bytes).unwrap_or(usize::MAX);
        let class = JobObjectExtendedLimitInformation;
        // SAFETY: the handle is open, and the call reads one structure of the class and size passed.
        checked(unsafe {
            SetInformationJobObject(
                self.0.as_raw_handle(),
                class,
                (&raw const limits).cast(),
                LIMIT_BYTES,
            )
        })
    }

    /// The memory limit that the system has noted; `None` where it has noted none, whatever it was told.
    pub fn memory_limit(&self) -> Option<u64> {
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        // SAFETY: the handle is open, and the call writes one structure of the class and size passed.
        let asked = checked(unsafe {
            QueryInformationJobObject(
                self.0.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                (&raw mut limits).cast(),
                LIMIT_BYTES,
                std::ptr::null_mut(),
            )
        });
        let flags = limits.BasicLimitInformation.LimitFlags;
        let noted = flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY != 0 && limits.ProcessMemoryLimit > 0;
        (asked.is_ok() && noted).then_some(limits.ProcessMemoryLimit as u64)
    }

    /// Ends its processes.
    pub fn end(&self) {
        // SAFETY: the handle is open. A job without a running process has ended already.
        let _ = unsafe { TerminateJobObject(self.0.as_raw_handle(), 1) };
    }
}
