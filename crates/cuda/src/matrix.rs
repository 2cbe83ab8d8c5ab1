//! Matrices as kernels see them: an encoding, a shape, and where the pieces are.

use kernels::format::{BlockFormat, Encoding, FP8_TILE, FloatType, ScaleType};

use crate::Span;
use crate::abi::{BlockKind, Kind, PLACES, SYMMETRIC_SHIFT, mirrors};

/// A weight matrix `[rows, columns]` in memory of the device; mirrors `Matrix` in `kernels/common.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Matrix {
    pub(crate) weight: u64,
    pub(crate) scales: u64,
    pub(crate) biases: u64,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) kind: u32,
    pub(crate) bits: u32,
    pub(crate) group: u32,
    pub(crate) scale_kind: u32,
}

/// Shapes of the routed experts of a layer and where their pieces lie in a record; mirrors `Experts` in
/// `kernels/mixture.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExpertShapes {
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) places: u64,
    same: [u32; PLACES],
    equal: u32,
}

mirrors! {
    Matrix as Matrix { weight, scales, biases, rows, columns, kind, bits, group, scale_kind };
    ExpertShapes as Experts { gate, up, down, places, same, equal };
}

/// The code of a float type.
fn code(float: FloatType) -> u32 {
    let kind = match float {
        FloatType::F32 => Kind::F32,
        FloatType::F16 => Kind::F16,
        FloatType::Bf16 => Kind::Bf16,
    };
    kind as u32
}

/// The code of a block encoding.
fn block_code(format: BlockFormat) -> u32 {
    use BlockFormat as F;
    use BlockKind as K;
    let kind = match format {
        F::Q4_0 => K::Q4_0,
        F::Q4_1 => K::Q4_1,
        F::Q5_0 => K::Q5_0,
        F::Q5_1 => K::Q5_1,
        F::Q8_0 => K::Q8_0,
        F::Q2K => K::Q2K,
        F::Q3K => K::Q3K,
        F::Q4K => K::Q4K,
        F::Q5K => K::Q5K,
        F::Q6K => K::Q6K,
        F::Iq4Nl => K::Iq4Nl,
        F::Iq4Xs => K::Iq4Xs,
        F::Mxfp4 => K::Mxfp4,
        F::Iq2Xxs => K::Iq2Xxs,
        F::Iq2Xs => K::Iq2Xs,
        F::Iq2S => K::Iq2S,
        F::Iq3Xxs => K::Iq3Xxs,
        F::Iq3S => K::Iq3S,
        F::Iq1S => K::Iq1S,
        F::Iq1M => K::Iq1M,
        F::Tq1_0 => K::Tq1_0,
        F::Tq2_0 => K::Tq2_0,
        F::Nvfp4 => K::Nvfp4,
    };
    kind as u32
}

impl Matrix {
    /// Whether the kernels serve an encoding.
    pub fn serves(encoding: Encoding) -> bool {
        match encoding {
            Encoding::Float(_)
            | Encoding::Affine { .. }
            | Encoding::Symmetric { .. }
            | Encoding::Block(_)
            | Encoding::Mxfp4
            | Encoding::Fp8 { .. } => true,
            Encoding::Nvfp4 { .. } | Encoding::Zeroed { .. } | Encoding::Fp8Rows { .. } => false,
        }
    }

    /// A shape without memory, as experts have it.
    pub fn shape(encoding: Encoding, rows: usize, columns: usize) -> Self {
        let (kind, bits, group, scale_kind) = match encoding {
            Encoding::Float(float) => (code(float), 0, 1, 0),
            Encoding::Affine { bits, group, scale } => {
                (Kind::Affine as u32, u32::from(bits), u32::from(group), code(scale))
            }
            Encoding::Block(format) => {
                (Kind::Block as u32, block_code(format), format.values() as u32, 0)
            }
            Encoding::Mxfp4 => (Kind::Block as u32, BlockKind::Mxfp4Planes as u32, 32, 0),
            Encoding::Nvfp4 { .. } | Encoding::Zeroed { .. } | Encoding::Fp8Rows { .. } => {
                unreachable!("refused when the model is loaded")
            }
            Encoding::Symmetric { bits, group, scale } => {
                let bits = u32::from(bits);
                let scale_kind = code(scale) | bits << SYMMETRIC_SHIFT;
                (Kind::Affine as u32, bits, u32::from(group), scale_kind)
            }
            Encoding::Fp8 { scale } => {
                let scale_kind = match scale {
                    ScaleType::E8m0 => Kind::E8m0 as u32,
                    ScaleType::Float(float) => code(float),
                };
                (Kind::Block as u32, BlockKind::Fp8 as u32, FP8_TILE as u32, scale_kind)
            }
        };
        let [rows, columns] = [rows, columns]
            .map(|count| u32::try_from(count).expect("rows and columns are counted in 32 bits"));
        Self { weight: 0, scales: 0, biases: 0, rows, columns, kind, bits, group, scale_kind }
    }

    /// Where kernels read weights, scales and biases whose planes begin at `starts`: biases of symmetric codes are made
    /// of the scales.
    pub fn pieces<T: Copy>(encoding: Encoding, starts: [T; 3]) -> [T; 3] {
        let [weight, scales, biases] = starts;
        match encoding {
            Encoding::Symmetric { .. } => [weight, scales, scales],
            _ => [weight, scales, biases],
        }
    }

    /// A matrix whose pieces are at the given places.
    ///
    /// # Panics
    /// When a piece has another length than shape and encoding ask for.
    pub fn new(
        encoding: Encoding,
        rows: usize,
        columns: usize,
        weight: Span<u8>,
        scales: Span<u8>,
        biases: Span<u8>,
    ) -> Self {
        let found = [weight.len(), scales.len(), biases.len()];
        assert_eq!(found, encoding.plane_bytes(rows, columns), "bytes of weights, scales, biases");
        let starts = [weight, scales, biases].map(|piece| piece.address);
        let [weight, scales, biases] = Self::pieces(encoding, starts);
        Self { weight, scales, biases, ..Self::shape(encoding, rows, columns) }
    }

    /// The rows `first..first + rows` of a matrix of this encoding.
    ///
    /// # Panics
    /// When they are not all inside, or begin within a group of rows that shares scales.
    pub fn part(&self, encoding: Encoding, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows(), "rows of a matrix");
        let before = encoding.plane_bytes(first, self.columns());
        let rest = encoding.plane_bytes(self.rows() - first, self.columns());
        let all = encoding.plane_bytes(self.rows(), self.columns());
        let whole = (0..3).all(|plane| before[plane] + rest[plane] == all[plane]);
        assert!(whole, "a part begins between groups of rows");
        let [weight, scales, biases] = before.map(|bytes| bytes as u64);
        Self {
            weight: self.weight + weight,
            scales: self.scales + scales,
            biases: self.biases + biases,
            rows: rows as u32,
            ..*self
        }
    }

    /// The first `rows` rows, or all where there are fewer.
    pub fn first_rows(&self, rows: usize) -> Self {
        // Of every encoding the rows of each plane follow each other.
        Self { rows: self.rows.min(rows as u32), ..*self }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns as usize
    }

    /// True for a block encoding.
    pub(crate) fn has_blocks(&self) -> bool {
        self.kind == Kind::Block as u32
    }

    /// True for a block encoding of `kernels/blocks_grids.cuh`.
    pub(crate) fn has_grids(&self) -> bool {
        let grids = BlockKind::Iq2Xxs as u32..=BlockKind::Nvfp4 as u32;
        self.block_kind().is_some_and(|kind| grids.contains(&kind))
    }

    /// True for a block encoding of `kernels/planes.cuh`: scales are a plane of their own.
    pub(crate) fn has_scale_plane(&self) -> bool {
        let planes = BlockKind::Mxfp4Planes as u32..=BlockKind::Fp8 as u32;
        self.block_kind().is_some_and(|kind| planes.contains(&kind))
    }

    /// True for unquantised values.
    pub(crate) fn has_floats(&self) -> bool {
        !self.has_blocks() && self.quantised_bits().is_none()
    }

    /// The block encoding's code, where it is one.
    pub(crate) fn block_kind(&self) -> Option<u32> {
        self.has_blocks().then_some(self.bits)
    }

    /// Bits of a value when it is quantised in groups.
    pub(crate) fn quantised_bits(&self) -> Option<u32> {
        (self.kind == Kind::Affine as u32).then_some(self.bits)
    }
}

impl ExpertShapes {
    /// Shapes of gate, up and down, and the byte offsets of their pieces in the record of each expert:
    /// `[experts][9]`, weight, scales and biases of each in turn.
    pub fn new(gate: Matrix, up: Matrix, down: Matrix, places: Span<u32>) -> Self {
        assert!(gate.rows == up.rows && gate.columns == up.columns, "gate and up have one shape");
        Self { places: places.address, ..Self::without_places(gate, up, down) }
    }

    /// Shapes of gate, up and down alone, from which nothing is launched.
    pub fn without_places(gate: Matrix, up: Matrix, down: Matrix) -> Self {
        Self { gate, up, down, places: 0, same: [0; PLACES], equal: 0 }
    }

    /// Shape of the gate projections.
    pub fn gate(&self) -> Matrix {
        self.gate
    }

    /// The same for experts whose pieces all lie at `same`, which saves kernels a look at the list.
    pub fn with_equal_places(self, same: [u32; PLACES]) -> Self {
        Self { same, equal: 1, ..self }
    }

    /// Inner width.
    pub fn inner(&self) -> usize {
        self.gate.rows()
    }
}
