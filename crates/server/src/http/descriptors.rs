//! How many connections the system lets the process have, and what it says when there are no more.

use super::options::ServeError;

/// Descriptors for everything but connections: shards of checkpoints, rings, timers.
#[cfg(unix)]
const OTHER_DESCRIPTORS: u64 = 1024;

/// Whether a connection could not be taken because the process or the system has too many files open.
#[cfg(unix)]
pub(super) fn are_lacking(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lacking = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| lacking.contains(&number))
}

/// Lets the process have a descriptor for every connection, as far as the system allows: the usual soft limit of
/// 1,024 is for programs that use `select`. How many connections there can be, so that something is left for the rest
/// of the process: half of the descriptors, where there are so few.
#[cfg(unix)]
pub(super) fn raise_limit(connections: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections as u64 + OTHER_DESCRIPTORS;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        let _unchanged = setrlimit(Resource::Nofile, limit);
    }
    let Some(most) = getrlimit(Resource::Nofile).current else { return connections };
    let most = most - OTHER_DESCRIPTORS.min(most / 2);
    connections.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// What a connection and the process of a chat template take.
#[cfg(unix)]
const NEEDED: usize = 8;

/// Says whether a connection could be taken now.
///
/// # Errors
/// Too few files may be open.
#[cfg(unix)]
pub fn check_descriptors() -> Result<(), ServeError> {
    let more = (0..NEEDED).map(|_| rustix::io::dup(std::io::stderr()));
    let all: Result<Vec<_>, _> = more.collect();
    all.map(drop).map_err(|error| ServeError::Descriptors(error.into()))
}

/// As on Unix: handles have no limit there.
///
/// # Errors
/// None.
#[cfg(windows)]
pub fn check_descriptors() -> Result<(), ServeError> {
    Ok(())
}

/// As on Unix.
#[cfg(windows)]
pub(super) fn are_lacking(error: &std::io::Error) -> bool {
    /// WSAEMFILE, WSAENOBUFS.
    const LACKING: [i32; 2] = [10_024, 10_055];
    error.raw_os_error().is_some_and(|number| LACKING.contains(&number))
}

/// Handles have no limit there that a process could raise.
#[cfg(windows)]
pub(super) fn raise_limit(connections: usize) -> usize {
    connections
}
