//! Which fused kernels serve which matrices: those of affine groups, those of blocks and of floats, or those of
//! planes and of floats.

use super::Kernel;
use crate::abi::{BlockKind, Kind, STAGED_CHUNK, SYMMETRIC_SHIFT, UNIT};
use crate::{Device, ExpertShapes, Matrix};

/// A family of fused kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepForm {
    /// `kernels/step.cu`
    Affine,
    /// `kernels/step_blocks.cu`
    Blocks,
    /// `kernels/step_planes.cu`
    Planes,
}

/// Which kernels of a step serve matrices of blocks and of floats: fewer formats are less code, which is fetched sooner
/// (`FormatSet` in `kernels/block_jobs.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockSet {
    /// Q4_K, Q5_K, Q6_K, Q8_0 and floats.
    Usual,
    /// Others as well.
    Blocks,
    /// And those whose values are points of a grid.
    Grids,
}

impl BlockSet {
    /// The smallest that has all of these.
    pub(super) fn of<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Self {
        let usual = [BlockKind::Q4K, BlockKind::Q5K, BlockKind::Q6K, BlockKind::Q8_0];
        let set = |matrix: &Matrix| match matrix.block_kind() {
            _ if matrix.has_grids() => Self::Grids,
            Some(kind) if usual.iter().all(|&it| it as u32 != kind) => Self::Blocks,
            _ => Self::Usual,
        };
        matrices.into_iter().map(set).max().unwrap_or(Self::Usual)
    }

    /// Its kernel, of those of every set.
    pub(super) fn kernel(self, [usual, blocks, grids]: [Kernel; 3]) -> Kernel {
        match self {
            Self::Usual => usual,
            Self::Blocks => blocks,
            Self::Grids => grids,
        }
    }
}

/// Columns of a unit of blocks: `BLOCK_UNIT` in `kernels/blocks_step.cuh`.
pub(super) const BLOCK_UNIT: usize = 2 * UNIT;
/// Words of zeros behind a vector that is multiplied with blocks: `BLOCK_ZEROS` there.
const BLOCK_ZEROS: usize = 4 * STAGED_CHUNK;

/// The family that serves a matrix; floats are served by that of planes as well.
fn form(matrix: &Matrix) -> Option<StepForm> {
    let columns = matrix.columns();
    // Places within a matrix are words of 32 bits.
    let places = u64::from(matrix.rows) * u64::from(matrix.columns) <= 1 << 31;
    let whole = |unit| places && columns.is_multiple_of(unit);
    if matrix.quantised_bits().is_some() {
        let served = whole(UNIT)
            && matches!(matrix.group, 32 | 64 | 128)
            && matrix.scale_kind % (1 << SYMMETRIC_SHIFT) != Kind::F32 as u32;
        return served.then_some(StepForm::Affine);
    }
    if matrix.has_scale_plane() {
        return whole(UNIT).then_some(StepForm::Planes);
    }
    whole(if matrix.has_blocks() { BLOCK_UNIT } else { UNIT }).then_some(StepForm::Blocks)
}

/// What decides whether a device has fused kernels.
pub trait StepDevice {
    /// True where they run.
    fn has_fused_kernels(&self) -> bool;
}

impl StepDevice for Device {
    fn has_fused_kernels(&self) -> bool {
        self.info().capability.0 >= 8
    }
}

/// A device of compute capability 8.0 or more, of which nothing else has to be known.
#[derive(Clone, Copy, Debug)]
pub struct RecentDevice;

impl StepDevice for RecentDevice {
    fn has_fused_kernels(&self) -> bool {
        true
    }
}

/// The family whose kernel serves products with all of these matrices in one launch on this device.
pub(super) fn form_of<'a>(
    device: &(impl StepDevice + ?Sized),
    matrices: impl IntoIterator<Item = &'a Matrix>,
) -> Option<StepForm> {
    let join = |joined: StepForm, (form, floats): (StepForm, bool)| match (joined, form) {
        _ if joined == form => Some(joined),
        (StepForm::Planes, StepForm::Blocks) if floats => Some(joined),
        _ => None,
    };
    let forms = matrices.into_iter().map(|matrix| Some((form(matrix)?, matrix.has_floats())));
    let mut forms = forms.collect::<Option<Vec<_>>>()?;
    // What has planes first: floats join them.
    forms.sort_by_key(|&(form, _)| form != StepForm::Planes);
    let first = forms.first()?.0;
    let all = forms.into_iter().try_fold(first, join);
    all.filter(|_| device.has_fused_kernels())
}

/// True when the fused kernels serve products of these matrices in one launch on this device; where their pieces lie is
/// the caller's to know ([`super::STEP_ALIGNMENT`]).
pub fn step_serves<'a>(
    device: &(impl StepDevice + ?Sized),
    matrices: impl IntoIterator<Item = &'a Matrix>,
) -> bool {
    form_of(device, matrices).is_some()
}

/// True when gate and up can be one job [`super::StepJob::SwiGlu`].
pub fn step_serves_pair(device: &(impl StepDevice + ?Sized), gate: &Matrix, up: &Matrix) -> bool {
    step_serves(device, [gate, up])
        && (gate.rows, gate.columns, gate.kind, gate.bits, gate.scale_kind)
            == (up.rows, up.columns, up.kind, up.bits, up.scale_kind)
}

/// True when [`super::step_experts`] serves experts of these shapes, with this matrix of the shared expert.
pub fn step_serves_experts(
    device: &(impl StepDevice + ?Sized),
    shapes: &ExpertShapes,
    down: Option<&Matrix>,
) -> bool {
    let all = || [&shapes.gate, &shapes.up, &shapes.down].into_iter().chain(down);
    step_serves_pair(device, &shapes.gate, &shapes.up)
        && step_serves(device, all())
        && all().all(|matrix| !matrix.has_floats())
}

/// Bytes of a staged vector of whole units, and of the zeros behind it.
pub(super) fn staged_bytes(form: StepForm, columns: usize) -> usize {
    let zeros = if form == StepForm::Affine { 16 } else { BLOCK_ZEROS };
    (columns.next_multiple_of(UNIT) / 32 * STAGED_CHUNK + zeros) * 4
}

/// Bits of a value by which a product's work is shared out: more than four are loaded two units at a time, not four.
pub(super) fn bits_at_once(matrix: &Matrix) -> u32 {
    let wide = [BlockKind::Q8_0, BlockKind::Q3K, BlockKind::Q5K, BlockKind::Q6K, BlockKind::Fp8];
    match matrix.block_kind() {
        None => matrix.quantised_bits().unwrap_or(8),
        Some(kind) if wide.iter().any(|&wide| wide as u32 == kind) => 8,
        Some(_) => 4,
    }
}
