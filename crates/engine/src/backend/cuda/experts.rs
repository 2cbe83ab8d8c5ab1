//! Experts on the device: how their records lie in slots, the room through which those of prompts pass, and the
//! residency that says which record is where.
//!
//! The store's arenas are registered with the device, so a record in RAM is usable over the bus without a slot of
//! its own there. What decode uses is told to the store's policy after each step; the most wanted records are
//! copied to device memory on a stream of their own while later steps run, in place of the least wanted.

use std::sync::Arc;

use cuda::launch;
use cuda::{
    Device, DeviceBuffer, DevicePage, ExpertShapes, Matrix, PAGE_BYTES, Registration, Span, Stream,
};
use store::cache::{ExpertStore, LoadProgress};
use store::format::ProjectionShape;
use store::record::Place;
use store::{ExpertId, LayerId};

use super::CudaOptions;
use super::buffers::{Buffers, Sizes};
use super::requirements::{STAGING_RECORDS, SlotShare};
use super::slots::DeviceSlots;
use crate::EngineError;
use crate::residency::{Dimensions, Residency};

/// Where expert records will be.
pub struct ExpertMemory {
    /// The host tier. With a slot in device memory for every record it is only passed through.
    pub store: Arc<ExpertStore>,
    /// Bytes of a slot in device memory: those of the largest record, a multiple of 4096.
    pub slot_bytes: usize,
    /// Slots in device memory.
    pub device_slots: SlotShare,
    /// Told about the loading.
    pub progress: Option<LoadProgress>,
}

/// Records by tier, and what the kernels need to know of them.
pub(super) struct Experts {
    pub(super) residency: Residency<DeviceSlots>,
    /// Most slots, and how they share memory with keys and values.
    share: SlotShare,
    pub(super) slot_bytes: usize,
    /// Where the records of a prompt pass through, in two halves.
    pub(super) staging: DeviceBuffer,
    /// By layer; `None` for one without experts.
    shapes: Vec<Option<ExpertShapes>>,
    /// By layer: every record has its pieces where the fused kernels can read them.
    pub(super) aligned: Vec<bool>,
}

impl Experts {
    /// Fills slots in device memory evenly over the layers, then names what the host tier holds.
    pub(super) fn load(
        device: &Device,
        sizes: &Sizes,
        buffers: &Buffers,
        expert_shapes: &[Option<[ProjectionShape; 3]>],
        memory: ExpertMemory,
        options: &CudaOptions,
        pages: Vec<DevicePage>,
    ) -> Result<(Self, Vec<DevicePage>), EngineError> {
        let ExpertMemory { store, slot_bytes, device_slots: share, progress } = memory;
        let (layers, experts) = (sizes.layers, sizes.experts);
        let total = expert_shapes.iter().flatten().count() * experts;
        let device_slots = share.start.min(total);
        let mut registrations = Vec::new();
        for arena in store.arenas() {
            registrations.push(Registration::new(device, Arc::clone(arena) as _)?);
        }
        let bases: Vec<u64> = registrations.iter().map(Registration::address).collect();
        let bytes = device_slots * slot_bytes;
        let slots = match share.grows() {
            true => DeviceBuffer::reserve(device, bytes, share.solid_pages * PAGE_BYTES)?,
            false => DeviceBuffer::new(device, bytes)?,
        };
        let can_move = share.full < total;
        let staged = if can_move { STAGING_RECORDS * slot_bytes } else { 0 };
        let addresses = (0..device_slots)
            .map(|slot| slots.span::<u8>(slot * slot_bytes, 1).address())
            .collect();
        let mut words: Vec<u8> = Vec::with_capacity(layers * experts * 36);
        let mut aligned = vec![true; layers];
        let mut equal: Vec<Option<[u32; 9]>> = Vec::with_capacity(layers);
        for (layer, aligned) in aligned.iter_mut().enumerate() {
            if expert_shapes[layer].is_none() {
                words.resize(words.len() + experts * 36, 0);
                equal.push(None);
                continue;
            }
            let encodings = expert_shapes[layer].iter().flatten().map(|shape| shape.encoding);
            let encodings: Vec<_> = encodings.collect();
            for expert in 0..experts {
                let places = store.places(LayerId(layer as u16), ExpertId(expert as u16));
                let places =
                    places.expect("the checkpoint's experts were checked against the shapes");
                let apart = |(index, place): (usize, &Place)| {
                    let unit = if index % 3 == 0 { launch::STEP_ALIGNMENT } else { 2 };
                    (place.start as usize).is_multiple_of(unit)
                };
                let mut starts = places.each_ref().map(|place| place.start);
                for (starts, &encoding) in starts.chunks_exact_mut(3).zip(&encodings) {
                    let read = Matrix::pieces(encoding, [starts[0], starts[1], starts[2]]);
                    starts.copy_from_slice(&read);
                }
                match equal.get(layer) {
                    None => equal.push(Some(starts)),
                    Some(Some(same)) if *same != starts => equal[layer] = None,
                    Some(_) => {}
                }
                *aligned &= places.iter().enumerate().all(apart);
                words.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
            }
        }
        buffers.places.write(0, &words)?;
        let shape = |layer: usize, shape: &[ProjectionShape; 3]| {
            let [gate, up, down] =
                shape.each_ref().map(|s| Matrix::shape(s.encoding, s.rows, s.columns));
            let places = buffers.places.span(layer * experts * 36, experts * 9);
            let shapes = ExpertShapes::new(gate, up, down, places);
            equal[layer].map_or(shapes, |same| shapes.with_equal_places(same))
        };
        let shapes = expert_shapes.iter().enumerate();
        let shapes = shapes.map(|(i, s)| s.as_ref().map(|s| shape(i, s))).collect();
        let minimum = (options.step_tokens() * options.top_k).min(experts);
        let return_stream = Stream::new(device)?;
        let staging = DeviceBuffer::new(device, staged)?;
        let copy_stream = Stream::new(device)?;
        let memory =
            DeviceSlots { copy_stream, return_stream, registrations, slots, slot_bytes, pages: 0 };
        let dimensions =
            Dimensions { layers, experts, per_layer: minimum, slots: addresses, bases, can_move };
        let residency = Residency::new(store, memory, dimensions);
        let mut this = Self { residency, share, slot_bytes, staging, shapes, aligned };
        let rest = this.take_back_pages(pages)?;
        let bytes = (this.residency.slots() * slot_bytes) as u64;
        this.residency.load(|filled| {
            if let Some(report) = &progress {
                report(filled as u64 * slot_bytes as u64, bytes);
            }
        })?;
        Ok((this, rest))
    }

    /// Shapes of the experts of a layer that has any.
    pub(super) fn shapes(&self, layer: LayerId) -> &ExpertShapes {
        self.shapes[layer.index()].as_ref().expect("a mixture's layer has experts")
    }

    /// Between batches: pages that keys and values need, from the last slots.
    pub(super) fn give_up_pages(&mut self, count: usize) -> Result<Vec<DevicePage>, EngineError> {
        let left = self.residency.device().pages.saturating_sub(count);
        self.residency.shrink(self.share.slots_in(left, self.slot_bytes))?;
        self.residency.device_mut().unmap_to(left)
    }

    /// Gives slots the memory of pages; gives those back that no slot needs.
    pub(super) fn take_back_pages(
        &mut self,
        pages: Vec<DevicePage>,
    ) -> Result<Vec<DevicePage>, EngineError> {
        let rest = self.residency.device_mut().map(pages)?;
        if self.share.grows() {
            let pages = self.residency.device().pages;
            self.residency.grow(self.share.slots_in(pages, self.slot_bytes));
        }
        Ok(rest)
    }

    /// The slots in device memory, those without memory of their own included.
    pub(super) fn all_slots(&self) -> Span<u8> {
        self.residency.device().slots.span(0, self.share.start * self.slot_bytes)
    }
}
