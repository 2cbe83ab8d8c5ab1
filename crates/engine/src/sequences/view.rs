//! What of sequences may be asked while the device's thread computes: rooms and memory for snapshots.
//!
//! Layout and limits are fixed when a device is made, and buffers are counted under locks of their own
//! ([`super::pool`]), so nothing here waits for a batch.

use std::io;
use std::sync::Arc;

use super::full;
use super::layout::SequenceLayout;
use super::pool::{Pool, Pooled};
use super::snapshot::{BlankPart, Page, Room};
use crate::EngineError;

/// The rooms of a device.
#[derive(Clone)]
pub(crate) struct SequencesView {
    pub(super) layout: Arc<SequenceLayout>,
    pub(super) pages: Pool<Page>,
    pub(super) states: Pool<Vec<f32>>,
    pub(super) shares_pages: bool,
    pub(super) places: usize,
}

impl SequencesView {
    /// Most sequences at a time.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Whether sequences and snapshots share pages.
    pub(crate) fn shares_pages(&self) -> bool {
        self.shares_pages
    }

    /// [`super::Sequences::blank`].
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn blank(&self, length: usize) -> io::Result<BlankPart> {
        let state = self.new_state().map_err(io::Error::other)?;
        BlankPart::new(length, &self.layout, &self.pages, state)
    }

    /// Memory for a state, where there are states.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn new_state(&self) -> Result<Option<Pooled<Vec<f32>>>, EngineError> {
        if self.layout.state_values() == 0 {
            return Ok(None);
        }
        self.states.take().ok_or_else(full).map(Some)
    }

    /// [`super::Sequences::room`].
    pub(crate) fn room(&self) -> Room {
        let free = |bytes: usize, free| if bytes > 0 { free } else { usize::MAX };
        Room {
            pages: free(self.layout.page_bytes(), self.pages.free()),
            states: free(self.layout.state_values(), self.states.free()),
        }
    }
}
