//! The way to the drivers: Vulkan's loader, or Metal on macOS.

use crate::GpuError;

/// An instance of Vulkan that draws on no window.
///
/// wgpu enables what windows need wherever a system has it; Mesa's layer that orders devices then connects to the
/// desktop, and complains on stderr where there is none.
///
/// # Errors
/// There is no loader, or it found no driver.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn instance() -> Result<wgpu::Instance, GpuError> {
    use std::ffi::CStr;

    use wgpu::hal::{self, vulkan};

    const OF_WINDOWS: [&CStr; 3] =
        [c"VK_KHR_xlib_surface", c"VK_KHR_xcb_surface", c"VK_KHR_wayland_surface"];
    let descriptor = hal::InstanceDescriptor {
        name: "flashmoe",
        flags: wgpu::InstanceFlags::empty(),
        memory_budget_thresholds: Default::default(),
        backend_options: Default::default(),
        telemetry: None,
        display: None,
    };
    let without_windows = |arguments: vulkan::CreateInstanceCallbackArgs<'_, '_, '_>| {
        arguments.extensions.retain(|name| !OF_WINDOWS.contains(name));
    };
    // SAFETY: the libraries that are loaded are the system's own Vulkan loader and drivers. Extensions that are left
    // out are those of windows alone, which wgpu takes to be absent as on a system that has none; no surface is made.
    let made = unsafe {
        vulkan::Instance::init_with_callback(&descriptor, Some(Box::new(without_windows)))
    };
    let made = made.map_err(|error| missing(&error))?;
    // SAFETY: the instance was made just above, is valid and has no other owner.
    Ok(unsafe { wgpu::Instance::from_hal::<hal::api::Vulkan>(made) })
}

/// What an instance that could not be made lacks.
#[cfg(not(target_vendor = "apple"))]
fn missing(error: &wgpu::hal::InstanceError) -> GpuError {
    // wgpu's words where the library could not be loaded; any other error is the loaded library's.
    if error.to_string().contains("missing Vulkan entry points") {
        return GpuError::NoLoader;
    }
    let named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
    let named = named.iter().find_map(|name| {
        let value = std::env::var(name).ok()?;
        Some(format!("{name}={}", value.chars().take(200).collect::<String>().escape_debug()))
    });
    GpuError::NoDriver { named }
}

/// An instance of Metal.
///
/// # Errors
/// Never: Metal is a part of the system.
#[cfg(target_vendor = "apple")]
pub(crate) fn instance() -> Result<wgpu::Instance, GpuError> {
    Ok(wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::METAL,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    }))
}
