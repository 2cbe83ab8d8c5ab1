//! Device memory that comes and goes in pages under addresses that stay.
//!
//! A buffer made by [`DeviceBuffer::reserve`] has addresses for all its bytes and memory for a first part; pages are
//! mapped behind that part, taken out again and mapped elsewhere, in other buffers too. So kernels, graphs and tables
//! keep their addresses while memory moves. What a page held before stays in it.
//!
//! Work that names an address without memory ends in a fault of the device: such work is awaited before a page is
//! taken out.

use cudarc::driver::sys;

use crate::device::{Retired, check};
use crate::memory::{DeviceBuffer, clear};
use crate::{CudaError, Device};

/// Bytes of a page: what every device of compute capability 7.5 and later allocates at least.
pub const PAGE_BYTES: usize = 2 << 20;

/// A page of device memory that no buffer has. Dropping it gives it back.
pub struct DevicePage {
    device: Device,
    handle: u64,
}

/// What of a reserved range has memory.
pub(crate) struct Pages {
    /// Bytes of the range, whole pages.
    reserved: usize,
    /// Bytes at the start that always have memory, and its handle.
    solid: (usize, Option<u64>),
    /// By page behind them.
    handles: Vec<Option<u64>>,
}

/// A reserved range without an owner.
pub(crate) struct RetiredRange {
    address: u64,
    pages: Pages,
}

fn properties(ordinal: i32) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// True when pages of a device are ours. The context is current.
pub(crate) fn serves(ordinal: i32) -> bool {
    let mut unit = 0;
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: stores a number; the structure is ours.
    let asked =
        unsafe { sys::cuMemGetAllocationGranularity(&mut unit, &properties(ordinal), minimum) };
    asked == sys::CUresult::CUDA_SUCCESS && unit > 0 && PAGE_BYTES.is_multiple_of(unit)
}

fn create(device: &Device, bytes: usize) -> Result<u64, CudaError> {
    device.inner.bind()?;
    let _quiet = device.inner.quiet();
    let mut handle = 0;
    let properties = properties(device.info().ordinal as i32);
    // SAFETY: stores a handle, released by its owner; the structure is ours.
    let result = unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) };
    if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        let (free, total) = device.inner.memory()?;
        return Err(CudaError::Memory { kind: "device", bytes, free, total });
    }
    check("cuMemCreate", result)?;
    Ok(handle)
}

fn allow(device: &Device, address: u64, bytes: usize) -> Result<(), CudaError> {
    let access = sys::CUmemAccessDesc {
        location: location(device.info().ordinal as i32),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the range was mapped by the caller.
    check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &access, 1) })
}

impl DevicePage {
    /// Allocates.
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Ok(Self { device: device.clone(), handle: create(device, PAGE_BYTES)? })
    }
}

impl Drop for DevicePage {
    fn drop(&mut self) {
        let _ = self.device.inner.bind();
        let _quiet = self.device.inner.quiet();
        // SAFETY: the handle is this value's, and mapped nowhere.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

impl DeviceBuffer {
    /// Addresses for `bytes`, rounded up to pages, and memory, zero at first, for the first `solid` of them, a multiple
    /// of [`PAGE_BYTES`].
    ///
    /// # Errors
    /// [`CudaError::Memory`] with the numbers; no addresses.
    pub fn reserve(device: &Device, bytes: usize, solid: usize) -> Result<Self, CudaError> {
        let reserved = bytes.max(1).next_multiple_of(PAGE_BYTES);
        assert!(solid <= reserved && solid.is_multiple_of(PAGE_BYTES), "whole pages in the range");
        device.inner.bind()?;
        let _quiet = device.inner.quiet();
        let mut address = 0;
        // SAFETY: stores an address, given back with the device.
        let result = unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) };
        check("cuMemAddressReserve", result)?;
        let handles = vec![None; (reserved - solid) / PAGE_BYTES];
        let pages = Pages { reserved, solid: (solid, None), handles };
        // From here on the range is given back with the buffer.
        let mut buffer = Self::with_pages(device, address, reserved, pages);
        if solid > 0 {
            let handle = create(device, solid)?;
            buffer.put(|pages| pages.solid.1 = Some(handle));
            // SAFETY: the range was reserved above and has no memory yet.
            check("cuMemMap", unsafe { sys::cuMemMap(address, solid, 0, handle, 0) })?;
            allow(device, address, solid)?;
            // SAFETY: the range was mapped above.
            unsafe { clear(address, solid) }?;
        }
        Ok(buffer)
    }

    fn put(&mut self, change: impl FnOnce(&mut Pages)) {
        change(self.pages.as_mut().expect("a buffer of pages"));
    }

    /// Address of a page, counted from the end of the solid part.
    fn page_address(&self, index: usize) -> u64 {
        let solid = self.pages.as_ref().map_or(0, |pages| pages.solid.0);
        self.address + (solid + index * PAGE_BYTES) as u64
    }

    /// Pages behind the solid part, mapped or not.
    pub fn page_places(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.handles.len())
    }

    /// Maps pages one after another from page `first` behind the solid part on.
    ///
    /// # Errors
    /// The device failed; the pages are lost.
    ///
    /// # Panics
    /// When one of the places is not the buffer's or has a page.
    pub fn map(&mut self, first: usize, new: Vec<DevicePage>) -> Result<(), CudaError> {
        let (count, device) = (new.len(), self.device.clone());
        if count == 0 {
            return Ok(());
        }
        device.inner.bind()?;
        let _quiet = device.inner.quiet();
        for (index, page) in (first..).zip(new) {
            let address = self.page_address(index);
            let places = self.pages.as_mut().map(|pages| &mut pages.handles);
            let place = places.and_then(|places| places.get_mut(index)).expect("a place of ours");
            assert!(place.is_none(), "a place has one page");
            // SAFETY: the range is reserved, and nothing is mapped there.
            let mapped = unsafe { sys::cuMemMap(address, PAGE_BYTES, 0, page.handle, 0) };
            check("cuMemMap", mapped)?;
            *place = Some(page.handle);
            // The handle is the buffer's now.
            std::mem::forget(page);
        }
        allow(&device, self.page_address(first), count * PAGE_BYTES)
    }

    /// Takes a page out. No work that names it may be under way.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// When there is none.
    pub fn unmap(&mut self, index: usize) -> Result<DevicePage, CudaError> {
        self.device.inner.bind()?;
        let _quiet = self.device.inner.quiet();
        let address = self.page_address(index);
        let place = self.pages.as_mut().and_then(|pages| pages.handles.get_mut(index));
        let place = place.expect("a place of ours");
        let handle = place.expect("a page is there");
        // SAFETY: one mapping of this length was made there; what names it afterwards faults (module).
        check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, PAGE_BYTES) })?;
        *place = None;
        Ok(DevicePage { device: self.device.clone(), handle })
    }
}

impl RetiredRange {
    pub(crate) fn of(address: u64, pages: Pages) -> Retired {
        Retired::Range(Self { address, pages })
    }

    /// Gives memory and addresses back. The context is current, and no work can name them.
    pub(crate) fn free(self) -> sys::CUresult {
        let (solid, handle) = self.pages.solid;
        let first = handle.map(|handle| (self.address, solid, handle));
        let pages = (0..).zip(self.pages.handles).filter_map(|(index, handle): (u64, _)| {
            let address = self.address + solid as u64 + index * PAGE_BYTES as u64;
            handle.map(|handle| (address, PAGE_BYTES, handle))
        });
        for (address, bytes, handle) in first.into_iter().chain(pages) {
            // SAFETY: one mapping of this length was made there, or none, which changes nothing; the handle was the
            // range's.
            unsafe {
                let _ = sys::cuMemUnmap(address, bytes);
                let _ = sys::cuMemRelease(handle);
            }
        }
        // SAFETY: reserved with this length, and nothing is mapped there any more.
        unsafe { sys::cuMemAddressFree(self.address, self.pages.reserved) }
    }
}
