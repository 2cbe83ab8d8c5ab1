//! A GPU in use: its memory, the work recorded for it, and what it answers.
//!
//! Work is recorded by [`Gpu::dispatch`] and [`Gpu::copy`] and runs in that order once it is submitted. What the host
//! writes lands before work that is recorded later and after work that was recorded earlier: memory that recorded work
//! may still read can be written at once, and is not written before that work is done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernels::format::BlockFormat;

use crate::adapter::Adapter;
use crate::ahead::{Ahead, Entry, bytes_of};
use crate::buffer::{Buffer, Span};
use crate::driver::Own;
use crate::footprint::{BLOCK_BYTES, Footprint, staged_bytes};
use crate::observer::Observer;
use crate::op::packing::Packing;
use crate::op::{Form, Op};
use crate::profile::Profile;
use crate::queue::Tape;
use crate::source::Access;
use crate::{GpuError, Kind};

/// Work that is recorded before it is handed over, so that the GPU begins while more is recorded: when the host has
/// waited for the GPU, which then has none, and at most. Each time it is twice what it was.
pub(crate) const SUBMIT_FIRST: usize = 8;
const SUBMIT_EVERY: usize = 96;

struct Pipeline {
    raw: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    id: u32,
}

/// A device seen from outside, from any thread.
#[derive(Clone)]
pub struct Handle(wgpu::Device);

impl Handle {
    /// Ends the device: what is under way or comes later fails as when a driver loses it.
    pub fn end(&self) {
        self.0.destroy();
    }

    /// Bytes that the driver was asked for, where they can be asked: buffers, what is written and read through, and
    /// what is left of blocks.
    pub fn allocated_bytes(&self) -> Option<u64> {
        Some(self.0.generate_allocator_report()?.total_reserved_bytes)
    }
}

/// A GPU in use.
pub struct Gpu {
    adapter: Adapter,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) own: Own,
    pipelines: HashMap<Op, Pipeline>,
    form: Form,
    grids: HashMap<BlockFormat, Buffer>,
    /// By pipeline, then buffer, start and bytes of each binding.
    groups: HashMap<Vec<u64>, wgpu::BindGroup>,
    pub(crate) encoder: Option<wgpu::CommandEncoder>,
    pub(crate) pass: Option<wgpu::ComputePass<'static>>,
    pub(crate) recorded: usize,
    /// So much is recorded when it is handed over.
    pub(crate) due: usize,
    /// Bytes written, and those of them that are known to have been copied: the others may still lie in memory that
    /// both share.
    pub(crate) written: u64,
    pub(crate) landed: u64,
    /// Where answers are read, those that are free.
    pub(crate) landings: Vec<wgpu::Buffer>,
    pub(crate) tape: Tape,
    pub(crate) ahead: Ahead,
    pub(crate) profile: Option<Profile>,
    pub(crate) observer: Option<Observer>,
    control: Option<Buffer>,
    failure: Arc<Mutex<Option<GpuError>>>,
    next_buffer: u32,
    held: u64,
    pub(crate) counts: Counts,
}

/// What the host handed over and waited for since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels that were launched.
    pub dispatches: u64,
    /// Those of them that were recorded while the step before ran.
    pub ahead: u64,
    /// Times that recorded work was handed over.
    pub submissions: u64,
    /// Times that the host stood still until work was done.
    pub waits: u64,
    /// How long it did.
    pub waited: Duration,
}

impl Gpu {
    /// Parts of buffers that kernels use begin at multiples of this.
    pub const ALIGNMENT: u64 = 256;
    /// Words of [`Gpu::control`].
    pub const CONTROL_WORDS: u64 = 2;

    /// Opens an adapter.
    ///
    /// # Errors
    /// It lacks what the kernels need, or its driver refuses.
    pub fn open(mut adapter: Adapter) -> Result<Self, GpuError> {
        check_limits(&adapter)?;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("flashmoe"),
            required_features: wgpu::Features::IMMEDIATES | adapter.optional_features(),
            required_limits: adapter.raw.limits(),
            experimental_features: crate::compile::experiments(&adapter),
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: BLOCK_BYTES..BLOCK_BYTES,
            },
            trace: wgpu::Trace::Off,
        };
        adapter.host_alignment = adapter.imports_at();
        let refused = |reason| GpuError::Open { adapter: adapter.name.clone(), reason };
        let (device, queue) = crate::driver::open(&adapter, &descriptor).map_err(refused)?;
        let own = Own::new(&device, &queue, &adapter.options).map_err(refused)?;
        let failure = watched(&device);
        let asked = adapter.asks_width() && crate::width::width(&device, &queue) == Some(32);
        if adapter.asks_width() && !asked {
            // A device that refuses the question computes without subgroups.
            *failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        }
        let form = Form { subgroups: adapter.has_subgroups() || asked };
        let mut gpu = Self {
            adapter,
            form,
            device,
            queue,
            own,
            pipelines: HashMap::new(),
            grids: HashMap::new(),
            groups: HashMap::new(),
            encoder: None,
            pass: None,
            recorded: 0,
            due: SUBMIT_FIRST,
            written: 0,
            landed: 0,
            landings: Vec::new(),
            tape: Tape::default(),
            ahead: Ahead::default(),
            profile: None,
            observer: None,
            control: None,
            failure,
            next_buffer: 0,
            held: 0,
            counts: Counts::default(),
        };
        gpu.control = Some(gpu.buffer("control words", 4 * Self::CONTROL_WORDS)?);
        Ok(gpu)
    }

    /// Two words that every kernel sees. The first is a flag: kernels do nothing while it is not zero, but those of
    /// the layer that raised it ([`crate::op::router::Choice`]). The second is a token whose router gave something that
    /// is no number, plus one.
    ///
    /// # Panics
    /// Never: it is allocated when the device is opened.
    pub fn control(&self) -> &Buffer {
        self.control.as_ref().expect("allocated by `open`")
    }

    /// Records that the control words become zero.
    pub fn clear_control(&mut self) {
        let control = self.control().clone();
        self.clear(&control);
    }

    /// What the texts of kernels depend on.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Compiles kernels anew in another form.
    pub(crate) fn set_form(&mut self, form: Form) {
        self.form = form;
        self.forget_steps();
        self.pipelines.clear();
        self.groups.clear();
    }

    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// This device, for those who watch it.
    pub fn handle(&self) -> Handle {
        Handle(self.device.clone())
    }

    /// True for a driver that computes on the processor.
    pub fn is_software(&self) -> bool {
        self.adapter.kind == Kind::Software
    }

    /// Bytes of memory that buffers hold.
    pub fn held_bytes(&self) -> u64 {
        self.held
    }

    /// Bytes of the place where `read` bytes are read at once.
    pub(crate) fn landing_bytes(read: u64) -> u64 {
        read.next_power_of_two().max(4096)
    }

    /// What was handed over and waited for since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Allocates zeroed memory. `what` names it where it is too large.
    ///
    /// # Errors
    /// More than a kernel can bind, or no memory left.
    pub fn buffer(&mut self, what: &str, bytes: u64) -> Result<Buffer, GpuError> {
        self.allocate(what, bytes, |this, it| Some(this.device.create_buffer(it)))
    }

    /// [`Gpu::buffer`] of weights and slots, which stay as long as the device: what residency sets have.
    ///
    /// # Errors
    /// More than a kernel can bind, or no memory left.
    pub fn lasting(&mut self, what: &str, bytes: u64) -> Result<Buffer, GpuError> {
        self.allocate(what, bytes, |this, it| this.own.allocate(&this.device, it))
    }

    fn allocate(
        &mut self,
        what: &str,
        bytes: u64,
        make: impl FnOnce(&mut Self, &wgpu::BufferDescriptor<'_>) -> Option<wgpu::Buffer>,
    ) -> Result<Buffer, GpuError> {
        let bytes = Footprint::padded(bytes);
        if bytes > self.adapter.binding_bytes {
            let limit = self.adapter.binding_bytes;
            return Err(GpuError::TooLarge { what: what.to_owned(), bytes, limit });
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let usages = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes,
            usage: usages,
            mapped_at_creation: false,
        };
        let made = make(self, &descriptor);
        let failed = pollster::block_on(scope.pop()).is_some();
        let Some(raw) = made.filter(|_| !failed) else {
            return Err(GpuError::OutOfMemory { asked: bytes, held: self.held });
        };
        self.check()?;
        self.held += bytes;
        Ok(self.numbered(raw, bytes))
    }

    /// Memory that work may use, which is not counted.
    pub(crate) fn numbered(&mut self, raw: wgpu::Buffer, bytes: u64) -> Buffer {
        let id = self.next_buffer;
        self.next_buffer += 1;
        Buffer { raw, id, bytes }
    }

    /// Writes bytes, a multiple of 4 at a multiple of 4, after all work that is recorded so far.
    ///
    /// # Errors
    /// The device failed.
    pub fn write(&mut self, buffer: &Buffer, start: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.submit()?;
        let (mut at, most) = (start, staged_bytes(self.adapter.memory));
        for part in bytes.chunks(most as usize) {
            if self.written - self.landed + part.len() as u64 > most {
                // What is written lies in memory of its own until it was copied.
                self.queue.submit([]);
                self.counts.submissions += 1;
                self.wait(None)?;
                self.landed = self.written;
            }
            self.queue.write_buffer(&buffer.raw, at, part);
            self.written += part.len() as u64;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// [`Gpu::write`] of words.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_words(
        &mut self,
        buffer: &Buffer,
        start: u64,
        words: &[u32],
    ) -> Result<(), GpuError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(buffer, start, &bytes)
    }

    /// [`Gpu::write`] of numbers.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_floats(
        &mut self,
        buffer: &Buffer,
        start: u64,
        values: &[f32],
    ) -> Result<(), GpuError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.write(buffer, start, &bytes)
    }

    /// Bytes of each grid that [`Gpu::grid`] may allocate: of every format that has one.
    pub fn grid_bytes() -> impl Iterator<Item = u64> {
        let grids = BlockFormat::ALL.iter().filter_map(|format| format.grid());
        grids.map(|(points, coordinates)| (points.len() * coordinates) as u64)
    }

    /// The points of the grid of a packing's format, words of four coordinates each; `None` where it has none.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn grid(&mut self, packing: Packing) -> Result<Option<Buffer>, GpuError> {
        let Some(format) = packing.block() else { return Ok(None) };
        let Some((points, coordinates)) = format.grid() else { return Ok(None) };
        if let Some(grid) = self.grids.get(&format) {
            return Ok(Some(grid.clone()));
        }
        let bytes =
            points.iter().flat_map(|point| point.to_le_bytes().into_iter().take(coordinates));
        let bytes: Vec<u8> = bytes.collect();
        let grid = self.buffer(format.name(), bytes.len() as u64)?;
        self.write(&grid, 0, &bytes)?;
        self.grids.insert(format, grid.clone());
        Ok(Some(grid))
    }

    /// Compiles an operation, if it is not yet.
    ///
    /// # Errors
    /// The driver refused it.
    pub fn prepare(&mut self, op: Op) -> Result<(), GpuError> {
        if self.pipelines.contains_key(&op) {
            return Ok(());
        }
        debug_assert!(crate::op::all::is_listed(op), "op/all.rs does not list {op:?}");
        let (source, text) = op.source(self.form);
        let entries = source.accesses.iter().enumerate();
        let entries: Vec<_> = entries
            .map(|(index, access)| wgpu::BindGroupLayoutEntry {
                binding: index as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: source.parameter_bytes(),
        });
        let name = format!("{op:?}");
        let module = crate::compile::module(&self.device, &name, text);
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        self.check()?;
        let id = self.pipelines.len() as u32;
        self.pipelines.insert(op, Pipeline { raw, layout, id });
        Ok(())
    }

    /// Records an operation over `groups` workgroups.
    ///
    /// # Errors
    /// The driver refused to compile it, or the device failed.
    pub(crate) fn dispatch(
        &mut self,
        op: Op,
        bindings: &[Span<'_>],
        parameters: &[u32],
        groups: [u32; 3],
    ) -> Result<(), GpuError> {
        self.observe(op, bindings, parameters, groups);
        if self.expected_dispatch(op, bindings, parameters, groups)? {
            return Ok(());
        }
        self.prepare(op)?;
        let Some(pipeline) = self.pipelines.get(&op) else {
            unreachable!("{op:?} was prepared above");
        };
        let control = self.control.as_ref().expect("allocated by `open`").all();
        let bindings = || bindings.iter().chain(std::iter::once(&control));
        let mut key = Vec::with_capacity(32);
        key.push(u64::from(pipeline.id));
        key.extend(bindings().flat_map(|it| [u64::from(it.buffer.id), it.start, it.bytes]));
        let device = &self.device;
        let noted = self.ahead.notes().then(|| key.clone());
        let group = self.groups.entry(key).or_insert_with(|| {
            let entries = bindings().enumerate();
            let entries: Vec<_> = entries
                .map(|(index, span)| wgpu::BindGroupEntry {
                    binding: index as u32,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &span.buffer.raw,
                        offset: span.start,
                        size: std::num::NonZero::new(span.bytes.next_multiple_of(4)),
                    }),
                })
                .collect();
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.layout,
                entries: &entries,
            })
        });
        let (pipeline, group) = (pipeline.raw.clone(), group.clone());
        let bytes = bytes_of(parameters);
        self.tape.record(&pipeline, &group, &bytes, groups);
        if self.tape.is_alone() {
            return Ok(());
        }
        if let Some(profile) = &mut self.profile {
            profile.note(op, groups);
        }
        self.encode(&pipeline, &group, &bytes, groups)?;
        if let Some(key) = noted {
            let parameters = parameters.to_vec();
            self.ahead.note(Entry::Dispatch { op, pipeline, group, key, parameters, groups });
        }
        Ok(())
    }

    /// Records a dispatch.
    pub(crate) fn encode(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        group: &wgpu::BindGroup,
        parameters: &[u8],
        groups: [u32; 3],
    ) -> Result<(), GpuError> {
        let timed = self.profile.as_mut().and_then(Profile::next);
        if timed.is_some() {
            self.pass = None;
        }
        if self.pass.is_none() {
            let writes = timed.as_ref().map(|(queries, first)| wgpu::ComputePassTimestampWrites {
                query_set: queries,
                beginning_of_pass_write_index: Some(*first),
                end_of_pass_write_index: Some(*first + 1),
            });
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: writes };
            self.pass = Some(self.encoder().begin_compute_pass(&descriptor).forget_lifetime());
        }
        let Some(pass) = &mut self.pass else { unreachable!("a pass was begun above") };
        crate::ahead::encode_in(pass, pipeline, group, parameters, groups);
        if timed.is_some() {
            self.pass = None;
        }
        self.counts.dispatches += 1;
        self.recorded += 1;
        if self.recorded >= self.due {
            self.due = (2 * self.due).min(SUBMIT_EVERY);
            self.submit()?;
        }
        Ok(())
    }

    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        let device = &self.device;
        self.encoder.get_or_insert_with(|| {
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None })
        })
    }

    /// What the device or its driver reported since the start; it stays.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), GpuError> {
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// What the kernels need of every adapter.
fn check_limits(adapter: &Adapter) -> Result<(), GpuError> {
    let limits = adapter.raw.limits();
    let lacks =
        |what: &str| Err(GpuError::Lacks { adapter: adapter.name.clone(), what: what.to_owned() });
    if !adapter.raw.features().contains(wgpu::Features::IMMEDIATES)
        || limits.max_immediate_size < 128
    {
        return lacks("128 bytes of push constants");
    }
    if limits.max_compute_invocations_per_workgroup < 256
        || limits.max_compute_workgroup_size_x < 256
    {
        return lacks("workgroups of 256");
    }
    if limits.max_compute_workgroup_storage_size < 16384 {
        return lacks("16 KiB of workgroup memory");
    }
    if limits.max_storage_buffers_per_shader_stage < 8
        || u64::from(limits.min_storage_buffer_offset_alignment) > Gpu::ALIGNMENT
    {
        return lacks("8 storage buffers at multiples of 256 bytes");
    }
    Ok(())
}

/// Where the first error of a device is remembered, or its loss.
fn watched(device: &wgpu::Device) -> Arc<Mutex<Option<GpuError>>> {
    let failure = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&failure);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let said = one_line(&error.to_string());
        let error = match error {
            wgpu::Error::OutOfMemory { .. } => GpuError::Exhausted(said),
            _ => GpuError::Refused(said),
        };
        remember(&seen, error);
    }));
    let seen = Arc::clone(&failure);
    device.set_device_lost_callback(move |_, reason| {
        remember(&seen, GpuError::Lost(one_line(&reason)));
    });
    failure
}

/// Keeps the first failure, those that follow are its consequences; or that the device was lost, which wgpu may report
/// after work that it refuses for that.
fn remember(failure: &Mutex<Option<GpuError>>, error: GpuError) {
    let mut kept = failure.lock().unwrap_or_else(PoisonError::into_inner);
    let lost = |error: &GpuError| matches!(error, GpuError::Lost(_));
    if kept.is_none() || lost(&error) && !kept.as_ref().is_some_and(lost) {
        *kept = Some(error);
    }
}

/// The driver's words without line breaks, cut to what a message can hold.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}
