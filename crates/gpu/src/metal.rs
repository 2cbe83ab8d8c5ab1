//! Metal's own: what wgpu's interface lacks and its driver layer gives access to. Vulkan's is in `vulkan.rs`, with the
//! same names.
//!
//! Residency sets (macOS 15) keep weights and slots resident, so that the driver does not walk them at every hand-over;
//! buffers lie over memory of the process without a copy; the host waits for a shared event. All of it is compiled for
//! macOS and has not run on a Mac (`docs/apple.md`).

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use block2::RcBlock;
use kernels::memory::StableMemory;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::{Message, available, sel};
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResource,
    MTLResourceOptions, MTLSharedEvent,
};
use wgpu::hal::api::Metal;

use crate::Adapter;
use crate::driver_options::{DriverOptions, Wait};

type Shared<T> = Retained<ProtocolObject<T>>;

/// Bytes of members of a set: macOS gives up sets as wholes, so that many small ones lose less than one large one.
const SET_BYTES: u64 = 2 << 30;
/// Most sets of a queue; what comes after joins the last.
const SET_LIMIT: usize = 32;
/// How long an event is waited for before wgpu's own wait takes over, which also sees work that failed.
const EVENT_MILLISECONDS: u64 = 2_000;

/// Bytes to whose multiples memory has to be aligned to be read in place: a page. `None` where the device's memory is
/// not the process's.
pub(crate) fn host_alignment(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the device is only asked for properties while `adapter`, which is borrowed, keeps it.
    let raw = unsafe { adapter.as_hal::<Metal>() }?;
    let page = objc2_foundation::NSPageSize() as u64;
    raw.raw_device().hasUnifiedMemory().then_some(page).filter(|page| *page > 0)
}

/// Why this system keeps no set of memory resident.
pub(crate) fn lacks_sets(adapter: &wgpu::Adapter) -> Option<&'static str> {
    // SAFETY: the device is only asked for properties while `adapter`, which is borrowed, keeps it.
    let Some(raw) = (unsafe { adapter.as_hal::<Metal>() }) else {
        return Some("it is not Metal's");
    };
    let known = available!(macos = 15.0)
        && raw.raw_device().respondsToSelector(sel!(newResidencySetWithDescriptor:error:));
    (!known).then_some("residency sets need macOS 15 or newer")
}

/// Why the host cannot wait for an event.
pub(crate) fn lacks_events(_adapter: &wgpu::Adapter) -> Option<&'static str> {
    (!available!(macos = 12.0)).then_some("waiting for a shared event needs macOS 12 or newer")
}

/// Opens an adapter.
///
/// # Errors
/// The driver's words.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let opened = pollster::block_on(adapter.raw.request_device(descriptor));
    opened.map_err(|error| error.to_string())
}

/// What is used of the driver beside wgpu.
pub(crate) struct Own {
    sets: Option<Sets>,
    event: Option<Shared<dyn MTLSharedEvent>>,
    /// The last value that the event was told to take.
    signal: u64,
}

impl Own {
    /// # Errors
    /// The driver makes no set or no event.
    pub(crate) fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        options: &DriverOptions,
    ) -> Result<Self, String> {
        let sets = options.residency.then(|| Sets::new(device, queue)).transpose()?;
        let event = match options.wait {
            Wait::Driver | Wait::Spin => None,
            Wait::Event => {
                let event = raw_device(device)?.newSharedEvent();
                Some(event.ok_or("--gpu-wait event: Metal makes no shared event")?)
            }
        };
        Ok(Self { sets, event, signal: 0 })
    }

    /// Memory that stays as long as the device, zeroed; a member of a set, where there are any. `None` without memory;
    /// an error of wgpu's allocation is wgpu's to report.
    pub(crate) fn allocate(
        &mut self,
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor<'_>,
    ) -> Option<wgpu::Buffer> {
        let Some(sets) = &mut self.sets else { return Some(device.create_buffer(descriptor)) };
        // As wgpu allocates it; Metal gives zeros.
        let options = MTLResourceOptions::StorageModePrivate;
        let raw = sets.device.newBufferWithLength_options(descriptor.size as usize, options)?;
        if let Some(label) = descriptor.label {
            raw.setLabel(Some(&NSString::from_str(label)));
        }
        sets.add(&raw, descriptor.size);
        Some(handed_to_wgpu(device, raw, descriptor))
    }

    /// A buffer over `bytes` bytes of `owner` from `start`, which is kept for as long as work may read them; address
    /// and number are multiples of a page.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Panics
    /// When they are not all inside.
    pub(crate) fn import(
        &mut self,
        device: &wgpu::Device,
        owner: &Arc<dyn StableMemory>,
        (start, bytes): (usize, usize),
    ) -> Result<wgpu::Buffer, String> {
        let (base, length) = owner.range();
        let end = start.checked_add(bytes);
        assert!(bytes > 0 && end.is_some_and(|end| end <= length), "{bytes} of {length}");
        let raw_device = raw_device(device)?;
        let most = raw_device.maxBufferLength();
        if bytes > most {
            return Err(format!("{bytes} bytes are more than Metal's {most} of a buffer"));
        }
        let pointer = base.wrapping_add(start).cast_mut().cast::<c_void>();
        let pointer = NonNull::new(pointer).ok_or("it has no address")?;
        let kept = Arc::clone(owner);
        let give_back = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            // The block has the owner until the buffer has given the block back.
            let _owner: &Arc<dyn StableMemory> = &kept;
        });
        // SAFETY: pointer and length are multiples of a page, which the caller has asked for; the range stays mapped
        // while `owner` lives (`StableMemory`), which the block keeps and Metal keeps the block for as long as the
        // buffer. The block may be called on any thread: the owner is `Send` and `Sync`, and it only drops it.
        let raw = unsafe {
            raw_device.newBufferWithBytesNoCopy_length_options_deallocator(
                pointer,
                bytes,
                MTLResourceOptions::StorageModeShared,
                Some(&give_back),
            )
        };
        let raw = raw.ok_or_else(|| format!("Metal refuses a buffer over {bytes} bytes of it"))?;
        if let Some(sets) = &mut self.sets {
            sets.add(&raw, bytes as u64);
        }
        Ok(handed_to_wgpu(
            device,
            raw,
            &wgpu::BufferDescriptor {
                label: Some("memory of the process"),
                size: bytes as u64,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            },
        ))
    }

    /// Work is handed over next: sets get what has come to them, and the event its next value behind the work. Gives
    /// that value.
    pub(crate) fn hand_over(&mut self, queue: &wgpu::Queue) -> u64 {
        if let Some(sets) = &mut self.sets {
            sets.commit();
        }
        if let Some(event) = &self.event {
            self.signal += 1;
            // SAFETY: the queue is used while `queue`, which is borrowed, keeps it; the signal is encoded behind the
            // submission that follows, as only this thread submits.
            if let Some(raw) = unsafe { queue.as_hal::<Metal>() } {
                raw.add_signal_event(event.clone(), self.signal);
            }
        }
        self.signal
    }

    /// Waits for the event to have a value, and says whether it came to that.
    pub(crate) fn wait(&self, signal: u64) -> bool {
        let event = self.event.as_ref();
        event.is_some_and(|it| it.waitUntilSignaledValue_timeoutMS(signal, EVENT_MILLISECONDS))
    }
}

/// The device behind wgpu's.
fn raw_device(device: &wgpu::Device) -> Result<Shared<dyn MTLDevice>, String> {
    // SAFETY: the handle is retained before `device`, which is borrowed, can go.
    let raw = unsafe { device.as_hal::<Metal>() }.ok_or("it is not Metal's")?;
    Ok(raw.raw_device().clone())
}

/// Gives wgpu a buffer that was made as `descriptor` says.
fn handed_to_wgpu(
    device: &wgpu::Device,
    raw: Shared<dyn MTLBuffer>,
    descriptor: &wgpu::BufferDescriptor<'_>,
) -> wgpu::Buffer {
    // SAFETY: the buffer is of this device, of the descriptor's size, its storage mode serves the usages, and its bytes
    // are initialised: zeroed by Metal, or the process's.
    unsafe {
        let made = wgpu::hal::metal::Device::buffer_from_raw(raw, descriptor.size);
        device.create_buffer_from_hal::<Metal>(made, descriptor)
    }
}

/// What the queue keeps resident.
struct Sets {
    device: Shared<dyn MTLDevice>,
    queue: Shared<dyn MTLCommandQueue>,
    all: Vec<Set>,
}

struct Set {
    raw: Shared<dyn MTLResidencySet>,
    bytes: u64,
    /// Has members that were not committed.
    changed: bool,
}

// SAFETY: a set is an object of Metal's that any thread may use, one at a time: it is changed through `&mut` alone.
unsafe impl Send for Set {}

impl Sets {
    fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Self, String> {
        // SAFETY: the handle is retained before `queue`, which is borrowed, can go.
        let raw = unsafe { queue.as_hal::<Metal>() }.ok_or("it is not Metal's")?;
        let mut sets =
            Self { device: raw_device(device)?, queue: raw.as_raw().retain(), all: Vec::new() };
        // So that a driver that makes none is known before anything is loaded.
        sets.grow()?;
        Ok(sets)
    }

    /// Adds an empty set to the queue.
    fn grow(&mut self) -> Result<(), String> {
        let made =
            self.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let raw = made.map_err(|error| {
            let said = error.localizedDescription();
            format!("--gpu-residency on: Metal makes no residency set ({said})")
        })?;
        self.queue.addResidencySet(&raw);
        self.all.push(Set { raw, bytes: 0, changed: false });
        Ok(())
    }

    /// Makes memory a member of a set; it is resident with the next [`Sets::commit`].
    fn add(&mut self, buffer: &ProtocolObject<dyn MTLBuffer>, bytes: u64) {
        let full =
            self.all.last().is_some_and(|set| set.bytes > 0 && set.bytes + bytes > SET_BYTES);
        if full && self.all.len() < SET_LIMIT {
            // Without another set it joins the last.
            let _ = self.grow();
        }
        if let Some(set) = self.all.last_mut() {
            set.raw.addAllocation(ProtocolObject::from_ref(buffer));
            set.bytes += bytes;
            set.changed = true;
        }
    }

    fn commit(&mut self) {
        for set in self.all.iter_mut().filter(|set| set.changed) {
            set.raw.commit();
            set.raw.requestResidency();
            set.changed = false;
        }
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        for set in &self.all {
            self.queue.removeResidencySet(&set.raw);
            set.raw.endResidency();
            set.raw.removeAllAllocations();
            set.raw.commit();
        }
    }
}
