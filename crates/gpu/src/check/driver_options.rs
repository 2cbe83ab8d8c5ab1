//! What is used of a driver beside wgpu ([`DriverOptions`]) against the plain way: the same bits, and memory of the
//! process is read as the process has left it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use kernels::memory::StableMemory;

use super::*;
use crate::{DriverOptions, HostMemory, HostSlabs, Import, Wait};

const ROWS: usize = 2101;
const COLUMNS: usize = 1280;
/// Slots of memory of the process, which need not be whole pages.
const SLOTS: usize = 5;
const SLOT_BYTES: usize = 3 * 4096;

/// Every way of an adapter that it can, each on a device of its own.
///
/// # Errors
/// The device failed, or one could not be opened.
pub fn run(adapter: &Adapter, each: &mut dyn FnMut(&Finding)) -> Result<Vec<Finding>, GpuError> {
    let plain = DriverOptions { import: Import::Off, ..DriverOptions::default() };
    let expected = product(&mut Gpu::open(adapter.clone().with(plain)?)?)?;
    let mut findings = Vec::new();
    for options in adapter.other_options() {
        let mut gpu = Gpu::open(adapter.clone().with(options)?)?;
        let mut equal = product(&mut gpu)? == expected;
        if options.import == Import::On {
            equal &= in_place(&mut gpu)?;
        }
        let name = named(options);
        let finding = Finding { name, difference: 0.0, bound: 0.0, alone_equal: equal };
        each(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

fn named(options: DriverOptions) -> String {
    let wait = match options.wait {
        Wait::Driver => None,
        Wait::Event => Some("--gpu-wait event"),
        Wait::Spin => Some("--gpu-wait spin"),
    };
    let import = (options.import == Import::On).then_some("--gpu-import on");
    let residency = options.residency.then_some("--gpu-residency on");
    let given: Vec<_> = [import, residency, wait].into_iter().flatten().collect();
    given.join(" ")
}

/// A product with weights that stay, waited for more than once.
fn product(gpu: &mut Gpu) -> Result<Vec<f32>, GpuError> {
    let mut numbers = Numbers::new(71);
    let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    let held = matrices::Held::random(encoding, ROWS, COLUMNS, &mut numbers);
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let (x, y) = (floats(gpu, &numbers.floats(COLUMNS))?, empty(gpu, ROWS)?);
    let mut found = Vec::new();
    for add in [false, true, true] {
        product::launch(gpu, trunk.matrix(0), &x, &y, 1, add)?;
        found.extend(gpu.read_floats(&y, 0, ROWS)?);
    }
    Ok(found)
}

/// Whether the device reads what the process has written, twice.
fn in_place(gpu: &mut Gpu) -> Result<bool, GpuError> {
    let page = gpu.adapter().host_alignment.unwrap_or(4096) as usize;
    let bytes = (SLOTS * SLOT_BYTES).next_multiple_of(page);
    let pages = Arc::new(Pages::new(bytes, page));
    let owner = Arc::clone(&pages) as Arc<dyn StableMemory>;
    let memory = HostMemory { owner, slot_bytes: SLOT_BYTES, slots: SLOTS };
    let Some(host) = HostSlabs::new(gpu, &[memory])? else { return Ok(false) };
    let to = gpu.buffer("check", SLOT_BYTES as u64)?;
    let mut equal = true;
    for seed in [72, 73] {
        let written = Numbers::new(seed).bytes(SLOTS * SLOT_BYTES);
        // SAFETY: as many bytes are mapped and nothing else touches them: the device's work was waited for.
        unsafe { pages.base.copy_from(NonNull::from(&written[0]), written.len()) };
        for (slot, written) in written.chunks_exact(SLOT_BYTES).enumerate() {
            host.copy(gpu, (0, slot * SLOT_BYTES), (&to, 0), SLOT_BYTES);
            equal &= gpu.read(&[(&to, 0, SLOT_BYTES as u64)])? == written;
        }
    }
    Ok(equal)
}

/// Pages of the process.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize, page: usize) -> Self {
        let layout = Layout::from_size_align(bytes, page).expect("a few pages");
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { base: base.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and this is its only owner.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: plain memory, written by this file between the device's work alone.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: it is allocated once, keeps its place, and is freed when it is dropped.
unsafe impl StableMemory for Pages {
    fn range(&self) -> (*const u8, usize) {
        (self.base.as_ptr(), self.layout.size())
    }
}
