//! Which GPUs there are, what each can do, and which one is meant.

use std::fmt;

use crate::GpuError;
use crate::driver::{host_alignment, lacks_sets};
use crate::driver_options::DriverOptions;
use crate::instance::instance;
use crate::memory::heaps;

/// How a GPU's memory and the host's relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// One memory for both.
    Unified,
    /// Memory of its own that the host can write in place.
    Reachable,
    /// Memory of its own that is filled by copies.
    Discrete,
}

impl fmt::Display for MemoryClass {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Unified => "unified with the host's",
            Self::Reachable => "its own, visible to the host",
            Self::Discrete => "its own",
        })
    }
}

/// What an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// A part of the processor's chip.
    Integrated,
    /// A virtual machine's.
    Virtual,
    /// A driver that computes on the processor.
    Software,
    /// The driver does not say.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Unknown => "unknown",
        })
    }
}

/// A GPU that could be used.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) raw: wgpu::Adapter,
    /// Its number in the order of [`adapters`].
    pub index: usize,
    /// As its driver calls it.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// `vulkan` or `metal`.
    pub api: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes of its memory, where they can be asked: of the largest heap of its own in Vulkan, of the recommended
    /// working set in Metal.
    pub memory_bytes: Option<u64>,
    /// How its memory and the host's relate.
    pub memory: MemoryClass,
    /// Most bytes that a kernel reads through one binding.
    pub binding_bytes: u64,
    /// Buffers that a kernel can use.
    pub bindings: u32,
    /// Bytes of memory that a workgroup shares.
    pub workgroup_bytes: u32,
    /// Lanes of a subgroup, least and most.
    pub subgroup: Option<(u32, u32)>,
    /// Whether kernels can compute in f16.
    pub f16: bool,
    /// Whether time stamps can be taken.
    pub timestamps: bool,
    /// Whether subgroups of 32 multiply matrices of 16 by 16, f16 with sums in f32.
    pub matrices: bool,
    /// Bytes to whose multiples memory of the process has to be aligned to be read in place; `None` where it cannot be.
    pub host_alignment: Option<u64>,
    /// What of its driver is used beside plain wgpu.
    pub options: DriverOptions,
}

impl Adapter {
    /// What a device is opened with beyond what all kernels need.
    pub(crate) fn optional_features(&self) -> wgpu::Features {
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::TIMESTAMP_QUERY, self.timestamps);
        features.set(wgpu::Features::SUBGROUP, self.has_subgroups() || self.asks_width());
        if self.matrices {
            features |=
                wgpu::Features::SHADER_F16 | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        features
    }

    /// Whether subgroups are the 32 invocations that kernels take for one.
    pub(crate) fn has_subgroups(&self) -> bool {
        self.subgroup == Some((32, 32))
    }

    /// Whether the width of subgroups is what a kernel finds ([`crate::width`]): Metal gives all of its GPUs the same
    /// limits, and one width to all pipelines of a GPU of Apple's.
    pub(crate) fn asks_width(&self) -> bool {
        self.is_metal() && self.subgroup.is_some_and(|(least, most)| (least..=most).contains(&32))
    }

    /// Whether it is reached through Metal.
    pub fn is_metal(&self) -> bool {
        self.api == wgpu::Backend::Metal.to_str()
    }

    /// The matrices that subgroups multiply, as the driver reports them: rows, columns and depth, types of the
    /// factors and of the sum.
    pub fn matrix_shapes(&self) -> Vec<String> {
        let shapes = self.raw.cooperative_matrix_properties().into_iter();
        let name = |it: wgpu::CooperativeMatrixProperties| {
            let (m, n, k) = (it.m_size, it.n_size, it.k_size);
            format!("{m}x{n}x{k} {:?} to {:?}", it.ab_type, it.cr_type)
        };
        shapes.map(name).collect()
    }
}

/// Whether the adapter multiplies the matrices that kernels use.
fn has_matrices(raw: &wgpu::Adapter, subgroup: Option<(u32, u32)>) -> bool {
    let wanted = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
    let shape = |it: &wgpu::CooperativeMatrixProperties| {
        (it.m_size, it.n_size, it.k_size) == (16, 16, 16)
            && it.ab_type == wgpu::CooperativeScalarType::F16
            && it.cr_type == wgpu::CooperativeScalarType::F32
    };
    // Kernels give subgroups their parts by the numbers of their invocations.
    subgroup == Some((32, 32))
        && raw.features().contains(wanted)
        && raw.limits().max_compute_workgroup_storage_size >= crate::op::tile::WORKGROUP_BYTES
        && raw.cooperative_matrix_properties().iter().any(shape)
}

/// All GPUs, in the order of the drivers.
///
/// # Errors
/// There is no Vulkan loader, or it found no driver.
pub fn adapters() -> Result<Vec<Adapter>, GpuError> {
    let found = pollster::block_on(instance()?.enumerate_adapters(wgpu::Backends::all()));
    Ok(found.into_iter().enumerate().map(|(index, raw)| describe(index, raw)).collect())
}

fn describe(index: usize, raw: wgpu::Adapter) -> Adapter {
    let (info, limits, features) = (raw.get_info(), raw.limits(), raw.features());
    let heaps = heaps(&raw);
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
        wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
        wgpu::DeviceType::VirtualGpu => Kind::Virtual,
        wgpu::DeviceType::Cpu => Kind::Software,
        wgpu::DeviceType::Other => Kind::Unknown,
    };
    let subgroup = features
        .contains(wgpu::Features::SUBGROUP)
        .then_some((info.subgroup_min_size, info.subgroup_max_size));
    Adapter {
        index,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        api: info.backend.to_str().to_owned(),
        kind,
        memory_bytes: heaps.map(|(bytes, _)| bytes),
        memory: heaps.map_or(MemoryClass::Unified, |(_, class)| class),
        binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
        bindings: limits.max_storage_buffers_per_shader_stage,
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        subgroup,
        f16: features.contains(wgpu::Features::SHADER_F16),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        matrices: has_matrices(&raw, subgroup),
        host_alignment: host_alignment(&raw),
        options: DriverOptions::default(),
        name: info.name,
        raw,
    }
}

/// The adapter of a number, or the first that is a GPU: discrete before integrated before others. A driver that
/// computes on the processor is taken only by its number.
///
/// # Errors
/// No loader, no driver, no GPU, or no adapter of this number.
pub fn choose(index: Option<usize>) -> Result<Adapter, GpuError> {
    let mut found = adapters()?;
    let count = found.len();
    if let Some(index) = index {
        if index >= count {
            return Err(GpuError::NoSuchAdapter { index, found: count });
        }
        return Ok(found.swap_remove(index));
    }
    let order = [Kind::Discrete, Kind::Integrated, Kind::Virtual, Kind::Unknown];
    match order.iter().find_map(|kind| found.iter().position(|one| one.kind == *kind)) {
        Some(place) => Ok(found.swap_remove(place)),
        None => {
            let named = |one: &Adapter| format!("{} (number {})", one.name, one.index);
            Err(GpuError::NoAdapter { others: found.iter().map(named).collect() })
        }
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}: {} ({}, {}, {})",
            self.index, self.name, self.kind, self.api, self.driver
        )?;
        write!(out, "; memory {}", self.memory)?;
        if let Some(bytes) = self.memory_bytes {
            let what = if self.is_metal() { " (recommendedMaxWorkingSetSize)" } else { "" };
            write!(out, ", {} MiB{what}", bytes >> 20)?;
        }
        write!(out, "; {} MiB a binding, {} bindings", self.binding_bytes >> 20, self.bindings)?;
        write!(out, ", {} KiB a workgroup", self.workgroup_bytes >> 10)?;
        if let Some((least, most)) = self.subgroup {
            write!(out, ", subgroups {least} to {most}")?;
        }
        let yes = |given: bool| if given { "yes" } else { "no" };
        write!(out, ", f16 {}, time stamps {}", yes(self.f16), yes(self.timestamps))?;
        write!(out, ", matrices {}", yes(self.matrices))?;
        write!(out, ", host memory in place {}", yes(self.host_alignment.is_some()))?;
        write!(out, ", residency sets {}", yes(lacks_sets(&self.raw).is_none()))
    }
}
