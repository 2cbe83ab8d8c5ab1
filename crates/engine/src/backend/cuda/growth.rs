//! Keys and values that take memory from experts' slots as sequences grow, and give it back.
//!
//! All memory of both is allocated when the backend is made: what the plan granted cannot be refused later, and the cap
//! holds throughout. Pages of it move between the cache's buffers and the last slots, between batches, while nothing
//! runs: first those that nothing uses, then those of ended sequences, then those of slots.

use cuda::{CudaError, Device, DeviceBuffer, DevicePage, PAGE_BYTES};

use super::buffers::{Buffers, Sizes};
use super::requirements::SlotShare;
use super::{CudaBackend, CudaOptions};
use crate::EngineError;
use crate::residency::cache_pages::CachePages;

/// Memory that moves.
pub(super) struct Growth {
    pages: CachePages,
    /// Buffers of keys and values.
    buffers: usize,
    /// Pages that neither the cache nor the slots have.
    spare: Vec<DevicePage>,
    /// A sequence has ended since pages were given back.
    ended: bool,
}

impl Growth {
    /// Where keys and values share memory with slots: allocates what is to move and gives each place its first page.
    /// The slots' buffer takes what is left.
    pub(super) fn where_shared(
        device: &Device,
        sizes: &Sizes,
        options: &CudaOptions,
        share: &SlotShare,
        buffers: &mut Buffers,
    ) -> Result<Option<Self>, CudaError> {
        if !share.grows() {
            return Ok(None);
        }
        let pages = CachePages::new(sizes.sequences, options.context, sizes.cache_row, PAGE_BYTES);
        let new = |_| DevicePage::new(device);
        let spare = (0..share.moving_pages).map(new).collect::<Result<Vec<_>, _>>()?;
        let buffers_of_rows = sizes.cache_sides * sizes.attention_layers;
        let mut this = Self { pages, buffers: buffers_of_rows, spare, ended: false };
        this.map_missing([&mut buffers.keys, &mut buffers.values])?;
        Ok(Some(this))
    }

    /// The sequence at a place has ended.
    fn end(&mut self, place: usize) {
        self.pages.end(place);
        self.ended = true;
    }

    /// Bytes of keys and values that have memory.
    pub(super) fn cache_bytes(&self) -> u64 {
        (self.pages.count() * self.buffers * PAGE_BYTES) as u64
    }

    /// Takes pages that slots can have.
    pub(super) fn take_spare(&mut self) -> Vec<DevicePage> {
        std::mem::take(&mut self.spare)
    }

    /// Pages that are in no buffer.
    pub(super) fn add_spare(&mut self, pages: Vec<DevicePage>) {
        self.spare.extend(pages);
    }

    /// Memory for all pages that must have some; there are spare pages for them.
    fn map_missing(&mut self, cache: [&mut [DeviceBuffer]; 2]) -> Result<(), CudaError> {
        let missing = self.pages.missing();
        for buffer in cache.into_iter().flatten() {
            for run in missing.chunk_by(|a, b| a + 1 == *b) {
                let rest = self.spare.len() - run.len();
                buffer.map(run[0], self.spare.split_off(rest))?;
            }
        }
        missing.into_iter().for_each(|page| self.pages.set(page, true));
        Ok(())
    }

    fn unmap(&mut self, pages: &[usize], cache: [&mut [DeviceBuffer]; 2]) -> Result<(), CudaError> {
        for buffer in cache.into_iter().flatten() {
            for &page in pages {
                self.spare.push(buffer.unmap(page)?);
            }
        }
        pages.iter().for_each(|&page| self.pages.set(page, false));
        Ok(())
    }
}

impl CudaBackend {
    /// Memory for what the batch that begins will write.
    pub(super) fn hold_batch(&mut self) -> Result<(), EngineError> {
        let ends = self.sequences.spans().iter().map(|span| (span.sequence.place(), span.end()));
        let ends: Vec<(usize, usize)> = ends.collect();
        self.hold_cache(ends.into_iter())
    }

    /// Between batches: memory for the first `tokens` tokens of each given place.
    pub(super) fn hold_cache(
        &mut self,
        wanted: impl Iterator<Item = (usize, usize)>,
    ) -> Result<(), EngineError> {
        let Some(growth) = &mut self.growth else { return Ok(()) };
        for place in 0..self.options.sequences {
            if self.sequences.take_ended(place) {
                growth.end(place);
            }
        }
        wanted.for_each(|(place, tokens)| growth.pages.need(place, tokens));
        let missing = growth.pages.missing().len() * growth.buffers;
        let idle = if std::mem::take(&mut growth.ended) { growth.pages.idle() } else { Vec::new() };
        if missing == 0 && idle.is_empty() {
            return Ok(());
        }
        self.settle()?;
        let moved = self.move_pages(missing, idle);
        // What is mapped is known by the buffers alone after a failure of the driver: the backend ends with it.
        self.note_pages();
        moved
    }

    fn move_pages(&mut self, missing: usize, idle: Vec<usize>) -> Result<(), EngineError> {
        let Some(growth) = &mut self.growth else { return Ok(()) };
        let buffers = &mut self.buffers;
        growth.unmap(&idle, [&mut buffers.keys, &mut buffers.values])?;
        let short = missing.saturating_sub(growth.spare.len());
        let (gone, from_slots) = growth.pages.give_way(short, growth.buffers);
        growth.unmap(&gone, [&mut buffers.keys, &mut buffers.values])?;
        if from_slots > 0 {
            let pages = self.experts.give_up_pages(from_slots)?;
            growth.add_spare(pages);
        }
        growth.map_missing([&mut buffers.keys, &mut buffers.values])?;
        let rest = self.experts.take_back_pages(growth.take_spare())?;
        growth.add_spare(rest);
        Ok(())
    }

    /// What lay on pages that are gone cannot be gone on from.
    fn note_pages(&mut self) {
        let Some(growth) = &self.growth else { return };
        for place in 0..self.options.sequences {
            self.sequences.note_lost(place, growth.pages.tokens(place));
        }
    }
}
