//! Slots of expert records in device memory: their memory, the host tier's registration, and the copies between both.

use cuda::{DeviceBuffer, DevicePage, Event, Registration, Saving, Source, Span, Stream};
use store::cache::{Admission, Held};

use crate::EngineError;
use crate::residency::DeviceMemory;

/// Slots, and what copies to and from them.
pub(super) struct DeviceSlots {
    /// This one and the next before `registrations`: copies use them until their streams are dropped.
    pub(super) copy_stream: Stream,
    /// Carries records back to the host tier, while `copy_stream` brings others.
    pub(super) return_stream: Stream,
    pub(super) registrations: Vec<Registration>,
    pub(super) slots: DeviceBuffer,
    pub(super) slot_bytes: usize,
    /// Pages behind the part of the slots that always has memory.
    pub(super) pages: usize,
}

impl DeviceSlots {
    fn slot(&self, slot: u32) -> Span<u8> {
        self.slots.span(slot as usize * self.slot_bytes, self.slot_bytes)
    }

    /// A held record of registered memory as the source of a copy: as long as a slot where the arena goes on, else as
    /// it is.
    pub(super) fn source(&self, held: &Held) -> Source {
        let bytes = self.slot_bytes.min(held.bytes().len());
        self.registrations[held.arena()].source(held.offset(), bytes)
    }

    /// Takes the last pages out until `left` are there. No copy is under way then.
    pub(super) fn unmap_to(&mut self, left: usize) -> Result<Vec<DevicePage>, EngineError> {
        self.copy_stream.wait()?;
        self.return_stream.wait()?;
        let mut pages = Vec::with_capacity(self.pages - left);
        while self.pages > left {
            self.pages -= 1;
            pages.push(self.slots.unmap(self.pages)?);
        }
        Ok(pages)
    }

    /// Puts pages in, as far as slots need them; gives the others back.
    pub(super) fn map(
        &mut self,
        mut pages: Vec<DevicePage>,
    ) -> Result<Vec<DevicePage>, EngineError> {
        let rest = pages.split_off(pages.len().min(self.slots.page_places() - self.pages));
        let count = pages.len();
        self.slots.map(self.pages, pages)?;
        self.pages += count;
        Ok(rest)
    }
}

impl DeviceMemory for DeviceSlots {
    type Filling = Event;
    type Saving = Saving<Admission>;

    fn load(&mut self, from: &Held, slot: u32, _key: u32) -> Result<(), EngineError> {
        let from = self.source(from);
        self.copy_stream.fetch(from, self.slot(slot).part(0, from.len()))?;
        Ok(self.copy_stream.wait()?)
    }

    fn fill(&mut self, from: &Held, slot: u32, _key: u32) -> Result<Event, EngineError> {
        let from = self.source(from);
        let event = Event::new(self.copy_stream.device())?;
        self.copy_stream.fetch(from, self.slot(slot).part(0, from.len()))?;
        event.record(&self.copy_stream)?;
        Ok(event)
    }

    fn is_filled(&mut self, filling: &Event) -> Result<bool, EngineError> {
        Ok(filling.has_happened()?)
    }

    fn save(&mut self, slot: u32, to: Admission) -> Result<Saving<Admission>, EngineError> {
        Ok(self.return_stream.save(self.slot(slot), to, Admission::bytes)?)
    }

    fn is_saved(&mut self, saving: &Saving<Admission>) -> Result<bool, EngineError> {
        Ok(saving.has_ended()?)
    }

    fn finish(&mut self, saving: Saving<Admission>) -> Result<Admission, EngineError> {
        Ok(saving.finish()?)
    }

    fn wait_for(&mut self, filling: &Event) -> Result<(), EngineError> {
        Ok(filling.wait()?)
    }

    fn relocate(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        for &(from, to) in pairs {
            self.copy_stream.copy(self.slot(from), self.slot(to))?;
        }
        Ok(self.copy_stream.wait()?)
    }
}
