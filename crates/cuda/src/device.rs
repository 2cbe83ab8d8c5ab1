//! Opening a device: the driver, its context, the kernels' images.

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;
use kernels::memory::StableMemory;

use crate::CudaError;
use crate::attended::Quiet;
use crate::launch::{Kernel, Unit};
use crate::pages::{self, RetiredRange};
use crate::staging::Staging;

/// Oldest architecture that the images hold.
const OLDEST: (i32, i32) = (7, 5);
/// CUDA of the compiler that made the images (`kernels/build.sh`): any driver of that version can load it.
const IMAGE_VERSION: (i32, i32) = (13, 0);

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number for it.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Bytes free when it was opened.
    pub free_bytes: u64,
    /// Version of CUDA that the driver speaks, major and minor.
    pub driver: (i32, i32),
    /// True when its memory can be mapped in pages ([`crate::DeviceBuffer::reserve`]).
    pub pages: bool,
}

/// An open device. Clones share it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// One of each unit's image, in the order of units.
    modules: Vec<sys::CUmodule>,
    functions: Vec<sys::CUfunction>,
    /// Dynamic shared memory that a block may have, bytes.
    pub(crate) shared_limit: usize,
    info: DeviceInfo,
    /// Memory whose owners are gone, freed with this value.
    retired: Mutex<Vec<Retired>>,
    /// For copies from and to ordinary memory, once it is open.
    staging: Mutex<Option<Staging>>,
    /// Steps of this engine whose kernels may wait for the host.
    pub(crate) attended: AtomicUsize,
}

/// Memory without an owner, but that work, graphs and tables of addresses may still name.
pub(crate) enum Retired {
    /// Of the device.
    Device(u64),
    /// Of the device, mapped into reserved addresses.
    Range(RetiredRange),
    /// Of the host, allocated by the driver.
    Pinned(*mut c_void),
    /// Of the host, registered, and who keeps it mapped.
    Registered(*mut c_void, Arc<dyn StableMemory>),
}

// SAFETY: the handles are the driver's, which may be used from any thread once the context is current there.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing in here changes after opening.
unsafe impl Sync for Inner {}

/// Turns a result of the driver into ours.
pub(crate) fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver stores a pointer to a static string, or leaves null for an unknown code.
    let named = unsafe { sys::cuGetErrorString(result, &mut text) };
    let message = if named == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: a static string of the driver, terminated by zero.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "unknown error".to_owned()
    };
    Err(CudaError::Call { call, code: result as u32, message })
}

/// The driver's handle of a device, after the driver was found and started.
fn find(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    // SAFETY: only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    // SAFETY: the library is there; no flags are defined.
    let started = unsafe { sys::cuInit(0) };
    if started == sys::CUresult::CUDA_ERROR_NO_DEVICE {
        return Err(CudaError::NoDevice { ordinal, count: 0 });
    }
    check("cuInit", started)?;
    let mut count = 0;
    // SAFETY: stores a number.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    if ordinal >= count as usize {
        return Err(CudaError::NoDevice { ordinal, count: count as usize });
    }
    let mut device = 0;
    // SAFETY: stores a handle; the number was checked.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
    Ok(device)
}

fn name_of(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut name = [0u8; 256];
    // SAFETY: the handle is the driver's; writes at most that many bytes, terminated by zero.
    let named = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 256, device) };
    check("cuDeviceGetName", named)?;
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

impl Device {
    /// Opens a device by the driver's number.
    ///
    /// # Errors
    /// What is missing: a driver, a device of that number, a recent enough one.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let device = find(ordinal)?;
        let _quiet = Quiet::begin();
        let name = name_of(device)?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: stores a number.
            let asked = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
            check("cuDeviceGetAttribute", asked).map(|()| value)
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) < OLDEST {
            return Err(CudaError::TooOld { name, major, minor });
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let managed = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let managed = attribute(managed)? != 0;
        let mut driver = 0;
        // SAFETY: stores a number.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut driver) })?;
        let mut context = MaybeUninit::uninit();
        // SAFETY: stores a handle, released when `Inner` is dropped.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(context.as_mut_ptr(), device) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        // SAFETY: the call succeeded.
        let context = unsafe { context.assume_init() };
        let mut inner = Inner {
            device,
            context,
            modules: Vec::new(),
            functions: Vec::new(),
            shared_limit: shared as usize,
            info: DeviceInfo {
                ordinal,
                name,
                capability: (major, minor),
                multiprocessors: multiprocessors as usize,
                total_bytes: 0,
                free_bytes: 0,
                driver: (driver / 1000, driver % 1000 / 10),
                pages: false,
            },
            retired: Mutex::new(Vec::new()),
            staging: Mutex::new(None),
            attended: AtomicUsize::new(0),
        };
        inner.bind()?;
        inner.load()?;
        inner.staging = Mutex::new(Some(Staging::new()?));
        let (free, total) = inner.memory()?;
        inner.info.free_bytes = free as u64;
        inner.info.total_bytes = total as u64;
        inner.info.pages = managed && pages::serves(ordinal as i32);
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// True when a kernel's blocks can be placed while the kernel before still runs, and the image has code that
    /// makes use of it: its code for compute capability 9.0 and later; PTX for unknown devices has not.
    pub(crate) fn overlaps(&self) -> bool {
        matches!(self.inner.info.capability.0, 9 | 10 | 12)
    }

    /// Shared memory that a block may have, bytes.
    pub(crate) fn shared_limit(&self) -> usize {
        self.inner.shared_limit
    }

    /// Bytes of device memory free now.
    ///
    /// # Errors
    /// The device failed.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.inner.bind()?;
        Ok(self.inner.memory()?.0 as u64)
    }
}

/// Why the image could not be loaded: an old driver, where it is one.
fn refused_image(error: CudaError, driver: (i32, i32)) -> CudaError {
    match error {
        CudaError::Call { message, .. } if driver < IMAGE_VERSION => {
            CudaError::OldDriver { found: driver, needed: IMAGE_VERSION, message }
        }
        other => other,
    }
}

impl Inner {
    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained by this value.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Keeps memory until nothing can name it: its owner is gone, but addresses of it have no lifetime.
    pub(crate) fn retire(&self, memory: Retired) {
        // A list without invariants: a thread that panicked has added its entry or has not.
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }

    /// What copies from and to ordinary memory, with the context current.
    pub(crate) fn staged<T>(
        &self,
        copy: impl FnOnce(&mut Staging, &Self) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        self.bind()?;
        // A copy that panicked has left bytes in halves that the next one overwrites.
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        copy(staging.as_mut().expect("an open device has it"), self)
    }

    /// Free and total bytes of device memory; zeros when the driver does not answer.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: stores two numbers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    pub(crate) fn function(&self, kernel: Kernel) -> sys::CUfunction {
        self.functions[kernel as usize]
    }

    fn load(&mut self) -> Result<(), CudaError> {
        for image in Unit::IMAGES {
            let mut module = std::ptr::null_mut();
            // SAFETY: the image is a complete fat binary, copied by the driver.
            let loaded = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
            check("cuModuleLoadData", loaded)
                .map_err(|error| refused_image(error, self.info.driver))?;
            self.modules.push(module);
        }
        for kernel in Kernel::ALL {
            let module = self.modules[kernel.unit() as usize];
            let name = CString::new(kernel.name()).expect("names hold no zero");
            let mut function = std::ptr::null_mut();
            // SAFETY: stores a handle that lives as long as the module.
            let found = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", found)?;
            let attribute = |which| {
                let mut value = 0;
                // SAFETY: stores a number.
                let asked = unsafe { sys::cuFuncGetAttribute(&mut value, which, function) };
                check("cuFuncGetAttribute", asked).map(|()| value)
            };
            use sys::CUfunction_attribute_enum as Attribute;
            let fixed = attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
            let rest = self.shared_limit as i32 - fixed;
            let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: raises a limit of our own function within what the device offers.
            let raised = unsafe { sys::cuFuncSetAttribute(function, which, rest) };
            check("cuFuncSetAttribute", raised)?;
            self.functions.push(function);
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _quiet = Quiet::begin();
        // SAFETY: handles of our own, not used any more; at the end of a process the driver may be gone already
        // and answers with an error that changes nothing.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            // Streams were clones of the device and waited for their work when they went.
            let retired = self.retired.get_mut().unwrap_or_else(PoisonError::into_inner);
            for memory in retired.drain(..) {
                let _ = match memory {
                    Retired::Device(address) => sys::cuMemFree_v2(address),
                    Retired::Range(range) => range.free(),
                    Retired::Pinned(host) => sys::cuMemFreeHost(host),
                    Retired::Registered(host, owner) => {
                        let result = sys::cuMemHostUnregister(host);
                        drop(owner);
                        result
                    }
                };
            }
            if let Some(staging) = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner) {
                staging.free();
            }
            for module in self.modules.drain(..) {
                let _ = sys::cuModuleUnload(module);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_refused_by_an_old_driver_is_the_drivers_fault() {
        let refused = || CudaError::Call { call: "x", code: 209, message: "no image".to_owned() };
        let text = refused_image(refused(), (12, 9)).to_string();
        assert!(text.contains("12.9") && text.contains("13.0") && text.contains("580"), "{text}");
        assert_eq!(refused_image(refused(), (13, 0)), refused());
    }
}
