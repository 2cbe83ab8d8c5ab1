//! The memory that requests may hold at once: bodies while they are read, and what accepted requests keep of them.
//!
//! Everything that a client sends is counted in one place, so that many requests of a lawful size cannot do together
//! what one of an unlawful size is refused for. Who finds no room is told to come again. A part of the room is for
//! small requests, so that a few large ones that are held back do not keep everybody waiting.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, Kind};
use crate::registry::Lease;

/// What is counted: one permit.
const UNIT_BYTES: usize = 4 << 10;
/// Requests up to this size may fill the room; larger ones leave a part of it free.
const SMALL_BYTES: usize = 128 << 10;
/// That part, as a divisor.
const SMALL_SHARE: usize = 4;
/// When to come again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Room for all requests.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    bytes: usize,
    /// Shares hold it too: as many as there are requests.
    requests: Arc<()>,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(units)), bytes, requests: Arc::default() }
    }

    /// Requests that hold a share.
    pub(crate) fn requests(&self) -> usize {
        Arc::strong_count(&self.requests) - 1
    }

    /// No bytes yet.
    pub(crate) fn share(&self) -> Share {
        Share { room: self.clone(), held: None, bytes: 0, lease: None }
    }
}

/// What one request holds; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    room: Room,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
    /// Keeps the request's model loaded.
    lease: Option<Lease>,
}

impl Share {
    /// Holds a model for as long.
    pub(crate) fn hold(&mut self, lease: Option<Lease>) {
        self.lease = lease;
    }

    /// Holds `more` bytes in addition.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        self.set(self.bytes.saturating_add(more))
    }

    /// Holds `bytes` from now on, more or fewer than before.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        let wanted = bytes.div_ceil(UNIT_BYTES);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted <= held {
            self.bytes = bytes;
            drop(self.held.as_mut().and_then(|permit| permit.split(held - wanted)));
            return Ok(());
        }
        let kept_free = self.room.bytes / UNIT_BYTES / SMALL_SHARE;
        let most = self.room.bytes - kept_free * UNIT_BYTES;
        if bytes > most {
            let message = format!(
                "this request takes {bytes} bytes of memory until it is answered; the server has {most} for one: \
                 send fewer or smaller tools and schemas, or see --memory"
            );
            return Err(ApiError::new(Kind::TooLarge, message));
        }
        let full = || {
            let message = format!(
                "other requests fill the {} bytes that the server has for them; come again",
                self.room.bytes
            );
            ApiError::new(Kind::QueueFull { retry_after: RETRY_AFTER }, message)
        };
        let more = u32::try_from(wanted - held).unwrap_or(u32::MAX);
        let more = self.room.free.clone().try_acquire_many_owned(more).map_err(|_| full())?;
        if bytes > SMALL_BYTES && self.room.free.available_permits() < kept_free {
            return Err(full());
        }
        match &mut self.held {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        self.bytes = bytes;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn shares_grow_shrink_and_come_back() {
        let room = Room::new(100 * UNIT_BYTES);
        let (mut one, mut other) = (room.share(), room.share());
        let mut small = room.share();
        one.set(40 * UNIT_BYTES).unwrap();
        other.set(35 * UNIT_BYTES).unwrap();
        // A large one leaves a quarter free, which is there for a small one.
        let error = other.set(36 * UNIT_BYTES).unwrap_err();
        assert!(matches!(error.kind(), Kind::QueueFull { .. }), "{error:?}");
        small.set(25 * UNIT_BYTES).unwrap();
        assert!(small.set(26 * UNIT_BYTES).is_err());
        drop(small);
        one.set(1).unwrap();
        other.set(74 * UNIT_BYTES).unwrap();
        let error = other.set(75 * UNIT_BYTES).unwrap_err();
        assert!(matches!(error.kind(), Kind::QueueFull { .. }), "{error:?}");
        drop(other);
        // What never fits is not told to come again.
        assert_eq!(one.set(76 * UNIT_BYTES).unwrap_err().kind(), Kind::TooLarge);
        one.set(75 * UNIT_BYTES).unwrap();
        drop(one);
        assert_eq!(room.free.available_permits(), 100);
    }
}
