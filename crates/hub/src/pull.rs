//! Downloads a selection into the cache: free disk first, then several connections, then links and the reference.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ureq::http::{StatusCode, header};

use crate::cache::Cache;
use crate::client::{Answer, Hub, Request, Trouble};
use crate::error::HubError;
use crate::name::ModelName;
use crate::repository::RepositoryFile;
use crate::segments::{Segment, Segments, locked};
use crate::select::Selection;
use crate::unfinished;

/// How often progress is told.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes in the cache.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Another program downloads a file that is wanted; its end is waited for.
    pub waits: bool,
}

/// A finished download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The snapshot's folder.
    pub snapshot: PathBuf,
    /// What to open: the folder, or the first part of a GGUF file.
    pub model: PathBuf,
    /// Bytes that were received.
    pub fetched: u64,
}

impl Hub {
    /// The cache that downloads go to.
    #[must_use]
    pub fn cache(&self) -> Cache {
        Cache::new(&self.settings.cache)
    }

    /// Bytes of `selection` that are not in the cache yet.
    #[must_use]
    pub fn missing(&self, name: &ModelName, selection: &Selection) -> u64 {
        let places = self.cache().places(name);
        selection.files.iter().map(|file| file.size - places.present(file)).sum()
    }

    /// Downloads what is missing of `selection`, calls `watch` ten times a second and stops when `stop` is set.
    ///
    /// # Errors
    ///
    /// Too little disk, no access, no connection after all attempts, bytes with another size or checksum. What has
    /// arrived stays in the cache: the next call goes on from there.
    pub fn pull(
        &self,
        name: &ModelName,
        selection: &Selection,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Status),
    ) -> Result<Pulled, HubError> {
        let cache = self.cache();
        let places = cache.places(name);
        let (total, missing) = (selection.bytes(), self.missing(name, selection));
        check_disk(&self.settings.cache, missing)?;
        if missing > 0 {
            unfinished::begin(&places, selection)?;
        }
        let files: VecDeque<RepositoryFile> = selection.files.iter().cloned().collect();
        let limits = self.settings.limits;
        let segments = Segments::new(&places, files, limits, stop);
        let fetched = AtomicU64::new(0);
        let connections = limits.connections.max(1);
        let busy = AtomicUsize::new(connections);
        std::thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| {
                    while let Some(segment) = segments.take() {
                        let mut bytes = Vec::new();
                        let came =
                            self.fetch(name, selection, &segment, &mut bytes, &segments, stop);
                        fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        let kept = segments.deliver(&segment, bytes);
                        if let Err(error) = came.and(kept) {
                            segments.fail(error);
                        }
                    }
                    busy.fetch_sub(1, Ordering::Release);
                });
            }
            loop {
                let done = segments.done.load(Ordering::Relaxed);
                let waits = segments.waits.load(Ordering::Relaxed);
                watch(Status { done, total, waits });
                if busy.load(Ordering::Acquire) == 0 {
                    break;
                }
                std::thread::sleep(WATCH_INTERVAL);
            }
        });
        segments.into_result()?;
        let snapshot = cache.link(name, selection)?;
        let first = selection.files.first().filter(|_| selection.quant.is_some());
        let model = first.map_or_else(|| snapshot.clone(), |file| snapshot.join(&file.path));
        Ok(Pulled { snapshot, model, fetched: fetched.into_inner() })
    }

    /// Fetches a segment. What came before a failure is in `bytes`; attempts count anew once so many bytes came since
    /// the last time as the slowest connection brings: one byte with every attempt is no progress.
    fn fetch(
        &self,
        name: &ModelName,
        selection: &Selection,
        segment: &Segment,
        bytes: &mut Vec<u8>,
        segments: &Segments<'_>,
        stop: &AtomicBool,
    ) -> Result<(), HubError> {
        let (mut failures, mut best, mut since) = (0, 0, Instant::now());
        let slowest = self.settings.limits.slowest as f64;
        while (bytes.len() as u64) < segment.length {
            if segments.has_failed() {
                return Err(HubError::Interrupted);
            }
            let Err(trouble) = self.fetch_once(name, selection, segment, bytes, stop) else {
                continue;
            };
            *locked(&segment.job.url) = None;
            let new = (bytes.len() - best) as f64;
            if new > 0.0 && new >= slowest * since.elapsed().as_secs_f64() {
                (best, failures, since) = (bytes.len(), 0, Instant::now());
            }
            failures += 1;
            self.settle(trouble, failures, stop)?;
        }
        Ok(())
    }

    fn fetch_once(
        &self,
        name: &ModelName,
        selection: &Selection,
        segment: &Segment,
        bytes: &mut Vec<u8>,
        stop: &AtomicBool,
    ) -> Result<(), Trouble> {
        let file = &segment.job.file;
        let origin = || self.file_url(name, &selection.commit, &file.path);
        let known = locked(&segment.job.url).clone();
        let url = known.unwrap_or_else(origin);
        let have = bytes.len() as u64;
        let (first, count) = (segment.offset + have, segment.length - have);
        let answer = self.once(&Request { name, url: &url, range: Some((first, count)) })?;
        check_range(&answer, first, count, file.size)?;
        *locked(&segment.job.url) = Some(answer.url.clone());
        self.read_into(answer, count, stop, bytes)?;
        if (bytes.len() as u64) < segment.length {
            let reason =
                format!("the connection ended at byte {}", first + bytes.len() as u64 - have);
            return Err(Trouble::Passing(HubError::Network { url: origin(), reason }, None));
        }
        Ok(())
    }
}

/// That an answer has the bytes that were asked for, of a file of the size that was listed.
pub(crate) fn check_range(
    answer: &Answer,
    first: u64,
    count: u64,
    size: u64,
) -> Result<(), Trouble> {
    let wrong = |reason: String| Err(HubError::answer(&answer.url, reason).into());
    let headers = answer.response.headers();
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    if answer.response.status() == StatusCode::OK {
        let length = text(header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
        return match length {
            Some(length) if length != size => {
                wrong(format!("{length} bytes, but the file is listed with {size}"))
            }
            // All of it in one piece: as good as a range.
            _ if first == 0 => Ok(()),
            _ => wrong("ranges are not supported there, so a download cannot go on".to_owned()),
        };
    }
    let range = text(header::CONTENT_RANGE).unwrap_or_default();
    let parsed = range.strip_prefix("bytes ").and_then(|range| {
        let (span, total) = range.split_once('/')?;
        let (start, end) = span.split_once('-')?;
        Some((start.parse::<u64>().ok()?, end.parse::<u64>().ok()?, total.parse::<u64>().ok()?))
    });
    match parsed {
        Some((_, _, total)) if total != size => {
            wrong(format!("a file of {total} bytes, but it is listed with {size}"))
        }
        Some((start, end, _)) if start == first && end == first + count - 1 => Ok(()),
        _ => wrong(format!("asked for {count} bytes from {first}, got \"{range}\"")),
    }
}

/// That the file system of `folder` has `needed` bytes to spare.
fn check_disk(folder: &Path, needed: u64) -> Result<(), HubError> {
    // The folder may not exist yet: its nearest parent has the same file system.
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let found = store::io::platform::space(existing);
    let free = found.map_err(|error| HubError::io(existing, "examine", error))?.free;
    if needed > free {
        return Err(HubError::Disk { folder: folder.to_owned(), needed, free });
    }
    Ok(())
}
