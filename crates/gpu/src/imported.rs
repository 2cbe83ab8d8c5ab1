//! Memory of the process that a GPU reads in place: Vulkan's import of host pointers.
//!
//! wgpu has no such buffers, so they are made through its driver layer and handed to it. Work reads what the process
//! wrote before the work was handed over. Without `VK_EXT_external_memory_host`, and on Metal, there are none
//! ([`Adapter::host_alignment`]), and everything is copied by the host.

use std::sync::Arc;

use kernels::memory::StableMemory;

use crate::{Adapter, Buffer, Gpu, GpuError};

/// Bytes to whose multiples memory has to be aligned to be read in place; `None` where it cannot be.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn host_alignment(adapter: &wgpu::Adapter) -> Option<u64> {
    let mut host = ash::vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut all = ash::vk::PhysicalDeviceProperties2::default().push_next(&mut host);
    // SAFETY: the handles are only asked for properties and live as long as `adapter`, which is borrowed; the structure
    // that is filled is the extension's, which the physical device was asked for before.
    unsafe {
        let raw = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let name = ash::ext::external_memory_host::NAME;
        if !raw.physical_device_capabilities().supports_extension(name) {
            return None;
        }
        let instance = raw.shared_instance().raw_instance();
        instance.get_physical_device_properties2(raw.raw_physical_device(), &mut all);
    }
    Some(host.min_imported_host_pointer_alignment).filter(|alignment| *alignment > 0)
}

/// Metal's import is not written yet.
#[cfg(target_vendor = "apple")]
pub(crate) fn host_alignment(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Opens an adapter, with the import of host memory where it has that.
///
/// # Errors
/// The driver's words.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    #[cfg(not(target_vendor = "apple"))]
    if adapter.host_alignment.is_some() {
        return open_with_import(adapter, descriptor);
    }
    let opened = pollster::block_on(adapter.raw.request_device(descriptor));
    opened.map_err(|error| error.to_string())
}

#[cfg(not(target_vendor = "apple"))]
fn open_with_import(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    use wgpu::hal::{api::Vulkan, vulkan};

    let with_import = |arguments: vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
        arguments.extensions.push(ash::ext::external_memory_host::NAME);
    };
    let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
    let opened = {
        // SAFETY: the handle is used while `adapter`, which is borrowed, keeps it.
        let raw = unsafe { adapter.raw.as_hal::<Vulkan>() }.ok_or("it is not Vulkan's")?;
        // SAFETY: the one extension that is added was found on this adapter (`host_alignment`) and asks for no other
        // that is not a part of Vulkan 1.1; no feature is taken away.
        unsafe {
            let add = Some(Box::new(with_import) as Box<vulkan::CreateDeviceCallback<'_>>);
            raw.open_with_callback(features, limits, &descriptor.memory_hints, add)
        }
    };
    let opened = opened.map_err(|error| error.to_string())?;
    // SAFETY: the device was opened just above, from this adapter and with the descriptor's features and limits.
    let made = unsafe { adapter.raw.create_device_from_hal::<Vulkan>(opened, descriptor) };
    made.map_err(|error| error.to_string())
}

/// Memory of the process with slots of one size.
pub struct HostMemory {
    /// Who keeps it.
    pub owner: Arc<dyn StableMemory>,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Slots.
    pub slots: usize,
}

/// Memories of the process that the device reads, each in a few buffers of whole slots.
pub struct HostSlabs {
    pub(crate) memories: Vec<ImportedMemory>,
}

pub(crate) struct ImportedMemory {
    pub(crate) slot_bytes: usize,
    /// Of each slab but the last.
    pub(crate) bytes: usize,
    pub(crate) slabs: Vec<Buffer>,
}

impl HostSlabs {
    /// Imports memories; `None` where the device cannot, or its driver has no room for them.
    ///
    /// # Errors
    /// The device failed.
    pub fn new(gpu: &mut Gpu, memories: &[HostMemory]) -> Result<Option<Self>, GpuError> {
        let reach = gpu.adapter().binding_bytes as usize;
        let mut all = Vec::with_capacity(memories.len());
        for HostMemory { owner, slot_bytes, slots } in memories {
            let per_slab = reach / slot_bytes;
            let wanted = gpu.adapter().host_alignment.map_or(0, |wanted| wanted as usize);
            let places = [owner.range().0 as usize, *slot_bytes];
            // No number but zero is a multiple of zero.
            if per_slab == 0 || places.iter().any(|place| !place.is_multiple_of(wanted)) {
                return Ok(None);
            }
            let bytes = per_slab * slot_bytes;
            let mut slabs = Vec::new();
            for first in (0..*slots).step_by(per_slab) {
                let here = (slots - first).min(per_slab) * slot_bytes;
                let raw = import(&gpu.device, owner, (first * slot_bytes, here));
                let Some(raw) = raw else { return Ok(None) };
                // It is not the device's, and counts nowhere.
                slabs.push(gpu.numbered(raw, here as u64));
            }
            gpu.check()?;
            all.push(ImportedMemory { slot_bytes: *slot_bytes, bytes, slabs });
        }
        Ok(Some(Self { memories: all }))
    }

    /// Records a copy of bytes, a multiple of 4 from a multiple of 4 on, of a memory to a buffer; they lie in one slot.
    pub fn copy(
        &self,
        gpu: &mut Gpu,
        (memory, start): (usize, usize),
        (to, at): (&Buffer, u64),
        bytes: usize,
    ) {
        let memory = &self.memories[memory];
        let from = &memory.slabs[start / memory.bytes];
        gpu.copy(from, (start % memory.bytes) as u64, to, at, bytes as u64);
    }
}

/// A buffer over `bytes` bytes of `owner` from `start`, which is kept for as long as work may read them; both numbers
/// are multiples of the alignment. `None` where the driver refuses.
///
/// # Panics
/// When they are not all inside.
#[cfg(not(target_vendor = "apple"))]
fn import(
    device: &wgpu::Device,
    owner: &Arc<dyn StableMemory>,
    (start, bytes): (usize, usize),
) -> Option<wgpu::Buffer> {
    use ash::vk;
    use wgpu::hal::{api::Vulkan, vulkan};

    let (base, length) = owner.range();
    let end = start.checked_add(bytes);
    assert!(bytes > 0 && end.is_some_and(|end| end <= length), "{bytes} from {start} of {length}");
    let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
    let pointer = base.wrapping_add(start).cast_mut().cast();
    // SAFETY: the handle is used while `device`, which is borrowed, keeps it.
    let hal = unsafe { device.as_hal::<Vulkan>() }?;
    let raw = hal.raw_device().clone();
    let instance = hal.shared_instance().raw_instance();
    let host = ash::ext::external_memory_host::Device::new(instance, &raw);
    let mut found = vk::MemoryHostPointerPropertiesEXT::default();
    // SAFETY: the extension is enabled where there is an alignment (`open`), which the caller has asked for; the
    // pointer is to memory that stays mapped while `owner` lives (`StableMemory`).
    let asked = unsafe {
        let ask = host.fp().get_memory_host_pointer_properties_ext;
        ask(raw.handle(), kind, pointer, &mut found).result()
    };
    asked.ok()?;
    let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
    let description =
        vk::BufferCreateInfo::default().size(bytes as u64).usage(usage).push_next(&mut external);
    // SAFETY: the description is complete; the buffer is destroyed below where what follows fails.
    let buffer = unsafe { raw.create_buffer(&description, None) }.ok()?;
    let memory = || {
        // SAFETY: the buffer was made above and has no memory yet.
        let needs = unsafe { raw.get_buffer_memory_requirements(buffer) };
        // SAFETY: the handle is only asked for properties.
        let properties =
            unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let allowed = needs.memory_type_bits & found.memory_type_bits;
        let types = &properties.memory_types[..properties.memory_type_count as usize];
        let coherent =
            |at: &usize| allowed >> at & 1 == 1 && types[*at].property_flags.contains(wanted);
        let kind_of_memory = (0..types.len()).find(coherent).filter(|_| needs.size <= bytes as u64);
        let index = kind_of_memory.ok_or(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?;
        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(kind).host_pointer(pointer);
        let asked = vk::MemoryAllocateInfo::default()
            .allocation_size(bytes as u64)
            .memory_type_index(index as u32)
            .push_next(&mut import);
        // SAFETY: pointer and size are multiples of the alignment, which the caller has asked for; the range is mapped
        // while `owner` lives, which the buffer keeps until its memory is given back; the type is one that the driver
        // named for this pointer and this buffer.
        let memory = unsafe { raw.allocate_memory(&asked, None) }?;
        // SAFETY: both were made above, the memory is as large as the buffer needs.
        match unsafe { raw.bind_buffer_memory(buffer, memory, 0) } {
            Ok(()) => Ok(memory),
            Err(error) => {
                // SAFETY: nothing is bound to it.
                unsafe { raw.free_memory(memory, None) };
                Err(error)
            }
        }
    };
    let memory = match memory() {
        Ok(memory) => memory,
        Err(_) => {
            // SAFETY: nothing else knows the buffer.
            unsafe { raw.destroy_buffer(buffer, None) };
            return None;
        }
    };
    let kept = Arc::clone(owner);
    let destroyer = raw.clone();
    let give_back = move || {
        // SAFETY: wgpu drops the buffer once no work uses it, before its device; nothing else has the handles.
        unsafe {
            destroyer.destroy_buffer(buffer, None);
            destroyer.free_memory(memory, None);
        }
        drop(kept);
    };
    drop(hal);
    // SAFETY: the buffer lives until `give_back`, which wgpu calls when it has dropped it; the descriptor says what it
    // was made with; its memory is the process's, and initialised.
    Some(unsafe {
        let made = vulkan::Buffer::from_raw_externally_owned(buffer, Box::new(give_back));
        device.create_buffer_from_hal::<Vulkan>(
            made,
            &wgpu::BufferDescriptor {
                label: Some("memory of the process"),
                size: bytes as u64,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            },
        )
    })
}

/// Metal's import is not written yet, and no adapter of it has an alignment.
#[cfg(target_vendor = "apple")]
fn import(
    _device: &wgpu::Device,
    _owner: &Arc<dyn StableMemory>,
    _place: (usize, usize),
) -> Option<wgpu::Buffer> {
    None
}
