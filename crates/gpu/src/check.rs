//! The kernels held against the scalar reference of `kernels`: what the tests run, and `flashmoe doctor --gpu-check`.
//!
//! Each check computes several tokens at once and one alone: the first must be within its bound of the reference, the
//! second must be the first's row, bit for bit.

use std::time::{Duration, Instant};

use kernels::format::{
    BlockFormat, Encoding, FloatType, GlobalScale, Matrix, ScaleType, decode_row,
};
use kernels::{bf16_from_f32, f16_from_f32};

use crate::op::{
    attention, combine, convolution, delta, delta_channels, draw, elementwise, embedding, experts,
    heads, norm, product, router,
};
use crate::{Adapter, Buffer, Gpu, GpuError, Slabs, Trunk};

mod chosen;
mod compressed;
mod delta_layer;
mod driver_options;
mod forms;
mod fused;
mod latent;
mod layers;
mod matrices;
mod pairs;
mod plain;
mod q8;
mod reference;
mod row_index;
mod sandwich;
mod scored;
mod streams;
mod tiles;

pub use driver_options::run as run_driver_options;

/// What a check found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was computed.
    pub name: String,
    /// The greatest difference from the reference, as a part of the reference's greatest number.
    pub difference: f32,
    /// What is allowed.
    pub bound: f32,
    /// Whether a token alone had the bits that it has among others, and what is exact was exact.
    pub alone_equal: bool,
}

impl Finding {
    /// True when nothing is wrong.
    pub fn holds(&self) -> bool {
        self.difference <= self.bound && self.alone_equal
    }
}

/// Pseudo-random numbers in -1 to 1 (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Scales that bring weights to a magnitude near one.
    fn scales(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() * 0.01).collect()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}

/// The greatest difference, as a part of the greatest expected number.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "results");
    let scale = expected.iter().fold(1e-6f32, |most, value| most.max(value.abs()));
    let mut most = 0.0f32;
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs() / scale;
        most = if apart.is_finite() { most.max(apart) } else { f32::INFINITY };
    }
    most
}

/// A buffer of numbers.
fn floats(gpu: &mut Gpu, values: &[f32]) -> Result<Buffer, GpuError> {
    let buffer = gpu.buffer("check", 4 * values.len() as u64)?;
    gpu.write_floats(&buffer, 0, values)?;
    Ok(buffer)
}

/// A buffer of words.
fn words(gpu: &mut Gpu, values: &[u32]) -> Result<Buffer, GpuError> {
    let buffer = gpu.buffer("check", 4 * values.len() as u64)?;
    gpu.write_words(&buffer, 0, values)?;
    Ok(buffer)
}

/// An empty buffer for numbers.
fn empty(gpu: &mut Gpu, count: usize) -> Result<Buffer, GpuError> {
    gpu.buffer("check", 4 * count as u64)
}

type Run = fn(&mut Gpu, &mut dyn FnMut(Finding)) -> Result<(), GpuError>;

/// Checks that belong together, by name. A group can be run by a process of its own, so that a driver that crashes in
/// one does not keep the others from being checked.
const GROUPS: [(&str, Run); 15] = [
    ("layers", layers::run),
    ("parts", plain::run),
    ("scores", scored::run),
    ("latent", latent::run),
    ("chosen-rows", row_index::run),
    ("sandwich", sandwich::run),
    ("streams", streams::run),
    ("compressed", compressed::run),
    ("fused", fused::run),
    ("chosen", chosen::run),
    ("delta-layers", delta_layer::run),
    ("forms", forms::run),
    ("tiles", tiles::run),
    ("packings", matrices::run),
    ("pairs", pairs::run),
];
/// The group of what is used of a driver that wgpu does not reach.
const OPTIONS: &str = "options";
/// A kernel of each kind, for a program that is about to use a GPU and wants to know within two seconds.
pub const SHORT: &str = "short";

/// Names of all groups but [`SHORT`], which has nothing that the others have not.
pub fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(name, _)| *name).chain([OPTIONS])
}

/// Runs a group on a device of its own; `each` hears of its checks as they are done.
///
/// # Errors
/// The adapter could not be opened, failed, or refused a kernel; there is no such group.
pub fn run_group(
    adapter: &Adapter,
    name: &str,
    each: &mut dyn FnMut(&Finding),
) -> Result<Vec<Finding>, GpuError> {
    if name == OPTIONS {
        return run_driver_options(adapter, each);
    }
    let run: Run = match GROUPS.iter().find(|(known, _)| *known == name) {
        Some((_, run)) => *run,
        None if name == SHORT => short,
        None => return Err(GpuError::Refused(format!("there is no group of checks {name}"))),
    };
    let mut findings = Vec::new();
    let mut gpu = Gpu::open(adapter.clone())?;
    run(&mut gpu, &mut |finding| {
        each(&finding);
        findings.push(finding);
    })?;
    Ok(findings)
}

/// How long the short form begins new checks: drivers that have compiled none of the kernels take a tenth of a second
/// for some.
const SHORT_TIME: Duration = Duration::from_millis(1500);

/// A kernel of each kind, those first that an answer spends its time in. What does not begin in [`SHORT_TIME`] is left
/// out, but for the first three: products, experts and the form that both are in.
fn short(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let checks: [Run; 7] = [
        matrices::short_products,
        matrices::short_experts,
        forms::short,
        layers::short_attention,
        layers::short_parts,
        chosen::short,
        matrices::short_packings,
    ];
    let started = Instant::now();
    for (index, run) in checks.into_iter().enumerate() {
        if index < 3 || started.elapsed() < SHORT_TIME {
            run(gpu, add)?;
        }
    }
    Ok(())
}

/// Runs every check of kernels; `each` hears of them as they are done.
///
/// # Errors
/// The device failed, or refused a kernel.
pub fn run(gpu: &mut Gpu, each: &mut dyn FnMut(&Finding)) -> Result<Vec<Finding>, GpuError> {
    let mut findings = Vec::new();
    for (_, run) in GROUPS {
        run(gpu, &mut |finding| {
            each(&finding);
            findings.push(finding);
        })?;
    }
    Ok(findings)
}
