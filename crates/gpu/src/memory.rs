//! How a GPU's memory and the host's relate, as Vulkan's heaps and Metal's device say; wgpu itself does not tell.

use crate::adapter::MemoryClass;

/// Bytes of memory of an adapter, and its class; `None` where the driver does not say.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn heaps(adapter: &wgpu::Adapter) -> Option<(u64, MemoryClass)> {
    const DEVICE_LOCAL: u32 = 1;
    const HOST_VISIBLE: u32 = 2;
    const HOST_COHERENT: u32 = 4;
    // SAFETY: the handles are only asked for properties and live as long as `adapter`, which is borrowed.
    let properties = unsafe {
        let raw = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = raw.shared_instance().raw_instance();
        instance.get_physical_device_memory_properties(raw.raw_physical_device())
    };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    let types = &properties.memory_types[..properties.memory_type_count as usize];
    let local = |heap: usize| heaps[heap].flags.as_raw() & DEVICE_LOCAL != 0;
    let (largest, bytes) = (0..heaps.len())
        .filter(|&heap| local(heap))
        .map(|heap| (heap, heaps[heap].size))
        .max_by_key(|&(_, size)| size)?;
    let wanted = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT;
    let visible = types.iter().any(|kind| {
        kind.heap_index as usize == largest && kind.property_flags.as_raw() & wanted == wanted
    });
    let shared = matches!(
        adapter.get_info().device_type,
        wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu
    );
    let class = match (visible, shared) {
        (true, true) => MemoryClass::Unified,
        (true, false) => MemoryClass::Reachable,
        (false, _) => MemoryClass::Discrete,
    };
    Some((bytes, class))
}

/// What Metal calls the recommended working set, and whether it is of the host's memory.
#[cfg(target_vendor = "apple")]
pub(crate) fn heaps(adapter: &wgpu::Adapter) -> Option<(u64, MemoryClass)> {
    use objc2_metal::MTLDevice;

    // SAFETY: the device is only asked for properties while `adapter`, which is borrowed, keeps it.
    let raw = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = raw.raw_device();
    let class = match device.hasUnifiedMemory() {
        true => MemoryClass::Unified,
        false => MemoryClass::Discrete,
    };
    Some((device.recommendedMaxWorkingSetSize(), class)).filter(|(bytes, _)| *bytes > 0)
}
