//! Vulkan's own: what wgpu's interface lacks and its driver layer gives access to. Metal's is in `metal.rs`, with the
//! same names.
//!
//! wgpu has no buffers over memory of the process; they are made here by `VK_EXT_external_memory_host` and handed to
//! it.

use std::sync::Arc;

use kernels::memory::StableMemory;

use crate::Adapter;
use crate::driver_options::DriverOptions;

/// Bytes to whose multiples memory has to be aligned to be read in place; `None` where it cannot be.
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

/// Why this driver keeps no set of memory resident.
pub(crate) fn lacks_sets(_adapter: &wgpu::Adapter) -> Option<&'static str> {
    Some("residency sets are Metal's, and this GPU is reached through Vulkan")
}

/// Why the host cannot wait for an event of this driver.
pub(crate) fn lacks_events(_adapter: &wgpu::Adapter) -> Option<&'static str> {
    Some("shared events are Metal's; through Vulkan `driver` waits for the driver's semaphore")
}

/// Opens an adapter, with the import of host memory where it has that.
///
/// # Errors
/// The driver's words.
pub(crate) fn open(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    if adapter.host_alignment.is_some() {
        return open_with_import(adapter, descriptor);
    }
    let opened = pollster::block_on(adapter.raw.request_device(descriptor));
    opened.map_err(|error| error.to_string())
}

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

/// What is used of the driver beside wgpu: nothing that lasts.
pub(crate) struct Own;

impl Own {
    /// # Errors
    /// None.
    pub(crate) fn new(
        _: &wgpu::Device,
        _: &wgpu::Queue,
        _: &DriverOptions,
    ) -> Result<Self, String> {
        Ok(Self)
    }

    /// Memory that stays as long as the device; an error where there is none is wgpu's.
    pub(crate) fn allocate(
        &mut self,
        device: &wgpu::Device,
        descriptor: &wgpu::BufferDescriptor<'_>,
    ) -> Option<wgpu::Buffer> {
        Some(device.create_buffer(descriptor))
    }

    /// [`import`].
    pub(crate) fn import(
        &mut self,
        device: &wgpu::Device,
        owner: &Arc<dyn StableMemory>,
        place: (usize, usize),
    ) -> Result<wgpu::Buffer, String> {
        import(device, owner, place)
    }

    /// Work is handed over next; gives the number that [`Own::wait`] waits for.
    pub(crate) fn hand_over(&mut self, _queue: &wgpu::Queue) -> u64 {
        0
    }

    /// Waits for an event, and says whether it came.
    pub(crate) fn wait(&self, _signal: u64) -> bool {
        false
    }
}

/// A buffer over `bytes` bytes of `owner` from `start`, which is kept for as long as work may read them; both numbers
/// are multiples of the alignment. `None` where the driver refuses.
///
/// # Panics
/// When they are not all inside.
fn import(
    device: &wgpu::Device,
    owner: &Arc<dyn StableMemory>,
    (start, bytes): (usize, usize),
) -> Result<wgpu::Buffer, String> {
    use ash::vk;
    use wgpu::hal::{api::Vulkan, vulkan};

    let (base, length) = owner.range();
    let end = start.checked_add(bytes);
    assert!(bytes > 0 && end.is_some_and(|end| end <= length), "{bytes} from {start} of {length}");
    let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
    let pointer = base.wrapping_add(start).cast_mut().cast();
    // SAFETY: the handle is used while `device`, which is borrowed, keeps it.
    let hal = unsafe { device.as_hal::<Vulkan>() }.ok_or("it is not Vulkan's")?;
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
    let refused = |what: &str, error: vk::Result| format!("the driver refuses {what} ({error})");
    asked.map_err(|error| refused("the address", error))?;
    let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
    let description =
        vk::BufferCreateInfo::default().size(bytes as u64).usage(usage).push_next(&mut external);
    // SAFETY: the description is complete; the buffer is destroyed below where what follows fails.
    let buffer = unsafe { raw.create_buffer(&description, None) };
    let buffer = buffer.map_err(|error| refused("a buffer of it", error))?;
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
        Err(error) => {
            // SAFETY: nothing else knows the buffer.
            unsafe { raw.destroy_buffer(buffer, None) };
            return Err(refused("the memory", error));
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
    Ok(unsafe {
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
