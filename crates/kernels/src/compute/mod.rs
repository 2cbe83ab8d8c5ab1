//! [`Compute`]: the kernels of one instruction set and a thread pool behind a safe interface.
//!
//! Methods check every length (a wrong one is a programmer's error and panics with the numbers;
//! hostile input has been refused by [`Matrix::new`]), split the work over rows, heads, channels or
//! tokens, and never over a sum: so the number of threads cannot change a bit. Nothing here
//! allocates except [`Compute::prepare`] when the activations must grow, and the first steps of attention.

mod attention;
mod combine;
mod mxfp4;
mod operations;
mod sequence;

pub use attention::ATTENTION_BYTES;

use crate::activations::{Activations, IntegerKey};
use crate::choice::choose;
use crate::format::{BlockFormat, Encoding, Matrix};
use crate::pool::Pool;
use crate::table::Table;
use crate::task::Task;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// How quantised weights meet activations. Float weights are always multiplied in binary32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Everything in binary32: relative error near 1e-7, slower.
    F32,
    /// 16-bit activations with one scale per token and weight group, exact integer sums: relative
    /// error near 2e-5, as fast as memory.
    #[default]
    Int16,
}

/// An instruction set. All give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    /// The fastest that this machine has.
    #[default]
    Auto,
    /// Plain Rust: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL, VBMI and VNNI, and with GFNI (Ice Lake, Zen 4 and later).
    Avx512,
    /// As `Avx512`, and AMX tiles for products of several tokens.
    Amx,
    /// aarch64 with NEON.
    Neon,
}

/// What [`Compute::new`] builds.
#[derive(Clone, Copy, Debug)]
pub struct ComputeOptions {
    /// Threads that compute, the caller included.
    pub threads: usize,
    /// Arithmetic of quantised products.
    pub arithmetic: Arithmetic,
    /// Instruction set, or `Auto`.
    pub isa: Isa,
}

/// Why [`Compute::new`] refused.
#[derive(Debug, Error)]
pub enum ComputeError {
    /// The instruction set was named and this machine or build lacks it.
    #[error("instruction set {isa:?} is not available on this machine; use auto")]
    Unavailable {
        /// The set asked for.
        isa: Isa,
    },
    /// No threads were asked for.
    #[error("threads is 0; at least the calling thread computes, use 1 or more")]
    NoThreads,
    /// The system refused a thread.
    #[error("cannot start {threads} compute threads; use fewer")]
    Spawn {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Which prepared activations a product uses.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    /// All of them, in order.
    All,
    /// These rows, in this order.
    Rows(&'a [u32]),
}

/// One product: `out [n, rows] = x [n, columns] * matrix [rows, columns]` transposed.
pub struct MatmulJob<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// Prepared for the encoding of the weights.
    pub x: &'a Activations,
    /// The rows of `x` to multiply.
    pub tokens: Tokens<'a>,
    /// `[n, rows]`
    pub out: &'a mut [f32],
}

/// The compute backend of one thread; see the module documentation.
pub struct Compute {
    table: &'static Table,
    pool: Arc<Pool>,
    arithmetic: Arithmetic,
    /// What attention keeps between its regions.
    parts: Mutex<Vec<f32>>,
}

/// A slice that several workers write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Parts<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: elements are reached only by `part` and `pointer`, whose callers promise that threads
// write disjoint elements and read none that another writes.
unsafe impl<T> Sync for Parts<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Parts<T> {}

impl<T> Parts<T> {
    fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// # Safety
    ///
    /// No two parts that live at the same time overlap, and the slice outlives them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part outside of its slice");
        // SAFETY: within the slice by the assertion; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The start, for kernels that write with a stride.
    fn pointer(&self) -> *mut T {
        self.start
    }
}

/// Bytes of weights that a worker takes at a time when few tokens are multiplied: a few
/// microseconds of reading, so that a late worker costs no more than that.
const PIECE_BYTES: usize = 64 << 10;

/// From so many tokens on pieces have more rows, because kernels arrange the tokens anew for each piece.
const MANY_TOKENS: usize = 8;

/// Rows of such pieces: arranging sixteen tokens costs about as much as multiplying them with 64 rows.
const MANY_TOKENS_ROWS: Range<usize> = 64..512;

/// Tokens of a piece are a multiple of this where a product has more: as many as kernels take through rows at a time,
/// so that nothing is done twice for it.
const TOKENS_UNIT: usize = 64;

/// Pieces that each worker gets of the products of a region with many tokens: the last one leaves the others idle.
const PIECES_EACH: usize = 8;

impl Compute {
    /// Starts the threads and chooses the kernels.
    pub fn new(options: ComputeOptions) -> Result<Self, ComputeError> {
        let ComputeOptions { threads, arithmetic, isa } = options;
        if threads == 0 {
            return Err(ComputeError::NoThreads);
        }
        let table = choose(isa)?;
        let pool = Pool::new(threads).map_err(|source| ComputeError::Spawn { threads, source })?;
        Ok(Self { table, pool: Arc::new(pool), arithmetic, parts: Mutex::default() })
    }

    /// The same for another thread that computes: both have the workers of one pool, a region at a time, so that
    /// together they use no more processors than one.
    #[must_use]
    pub fn sharing(&self) -> Self {
        let (table, pool, arithmetic) = (self.table, Arc::clone(&self.pool), self.arithmetic);
        Self { table, pool, arithmetic, parts: Mutex::default() }
    }

    /// Name of the chosen instruction set.
    pub fn isa_name(&self) -> &'static str {
        self.table.name
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.workers()
    }

    /// Arithmetic of quantised products.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The packing of 16-bit activations that an encoding needs; `None` for binary32.
    fn integer_key(&self, encoding: Encoding) -> Option<IntegerKey> {
        match (self.arithmetic, encoding) {
            (
                Arithmetic::Int16,
                Encoding::Affine { bits, group, .. }
                | Encoding::Symmetric { bits, group, .. }
                | Encoding::Zeroed { bits, group, .. },
            ) => Some(IntegerKey { packing: (self.table.packing)(bits), group: group.into() }),
            (Arithmetic::Int16, Encoding::Block(format)) => {
                Some(IntegerKey { packing: self.table.block_packing, group: format.group() })
            }
            (Arithmetic::Int16, Encoding::Mxfp4) => {
                self.integer_key(Encoding::Block(BlockFormat::Mxfp4))
            }
            (Arithmetic::Int16, Encoding::Nvfp4 { .. }) => {
                self.integer_key(Encoding::Block(BlockFormat::Nvfp4))
            }
            _ => None,
        }
    }

    /// Prepares `x [tokens, columns]` for products with matrices of every encoding in `uses`.
    /// Replaces what `out` held.
    ///
    /// # Panics
    ///
    /// If `x` is not whole rows or `columns` is not whole groups of an encoding.
    pub fn prepare(&self, x: &[f32], columns: usize, uses: &[Encoding], out: &mut Activations) {
        assert!(
            columns > 0 && x.len().is_multiple_of(columns),
            "{} floats in rows of {columns}",
            x.len()
        );
        let tokens = x.len() / columns;
        out.reset(tokens, columns);
        for &encoding in uses {
            if let Err(error) = encoding.check(columns) {
                panic!("activations for {encoding:?}: {error}");
            }
            let Some(key) = self.integer_key(encoding) else {
                if !out.has_floats() {
                    self.each_row(out.floats_mut(), columns, |t, row| {
                        row.copy_from_slice(&x[t * columns..(t + 1) * columns]);
                    });
                }
                continue;
            };
            let Some(target) = out.integers_mut(key) else { continue };
            let value_bytes = 2 * target.padded_columns;
            let groups = target.padded_groups;
            let values = Parts::new(target.values);
            let scales = Parts::new(target.scales);
            let sums = Parts::new(target.sums);
            // A few thousand columns take a microsecond: less than a region is not worth one.
            self.pool.for_each(tokens, (16384 / columns).max(1), |range| {
                for t in range {
                    // SAFETY: each token has its own parts; `new` has checked the features.
                    unsafe {
                        (self.table.prepare)(
                            &x[t * columns..(t + 1) * columns],
                            target.key,
                            values.part(t * value_bytes..(t + 1) * value_bytes),
                            scales.part(t * groups..(t + 1) * groups),
                            sums.part(t * groups..(t + 1) * groups),
                        );
                    }
                }
            });
        }
    }

    /// Runs several independent products in one parallel region.
    ///
    /// # Panics
    ///
    /// If a job's activations are not prepared for its encoding and columns, a token does not
    /// exist, or `out` has another length than `[n, rows]`.
    pub fn matmul(&self, jobs: &mut [MatmulJob<'_>]) {
        let cut = Pieces::new(jobs, self.pool.workers());
        let mut pieces = 0;
        let mut bytes = 0;
        for job in jobs.iter() {
            check_job(job);
            pieces += cut.count(job);
            bytes += job.matrix.weight.len() * job.count();
        }
        let jobs = Parts::new(jobs);
        let claim = |range: Range<usize>| {
            let (mut index, mut before) = (0, 0);
            for piece in range {
                // SAFETY: the piece exists, so the walk ends within the jobs; workers only read
                // the jobs themselves.
                let job = unsafe {
                    while piece >= before + cut.count(&*jobs.pointer().add(index)) {
                        before += cut.count(&*jobs.pointer().add(index));
                        index += 1;
                    }
                    jobs.pointer().add(index)
                };
                // SAFETY: pieces are disjoint rows or tokens of the outputs.
                unsafe { self.product(job, piece - before, cut) };
            }
        };
        if bytes < PIECE_BYTES / 4 {
            claim(0..pieces);
        } else {
            self.pool.for_each(pieces, 1, claim);
        }
    }

    /// One piece of a product.
    ///
    /// # Safety
    ///
    /// `job` has been checked and lives on; it is only read, except that the outputs of this piece
    /// are written, and no other thread writes them.
    unsafe fn product(&self, job: *mut MatmulJob<'_>, piece: usize, cut: Pieces) {
        // SAFETY: as above. The outputs are reached by a raw place, so that no reference to them
        // exists that another worker's writes could contradict.
        let (matrix, x, tokens, out) = unsafe {
            let out: *mut [f32] = &raw mut *(*job).out;
            (&(*job).matrix, (*job).x, (*job).tokens, out.cast::<f32>())
        };
        let all = tokens.count(x);
        if all == 0 {
            return;
        }
        let (rows, span) = cut.piece(matrix, all, piece);
        let (tokens, first, count) = match tokens {
            Tokens::All => (&[][..], span.start, span.len()),
            Tokens::Rows(rows) => (&rows[span.clone()], 0, span.len()),
        };
        let out = out.wrapping_add(span.start * matrix.rows);
        let key = self.integer_key(matrix.encoding);
        let in_planes = key.and(self.table.plane_rows);
        if matrix.encoding == Encoding::Mxfp4 && in_planes.is_none() {
            // SAFETY: as above.
            return unsafe { self.mxfp4_product(matrix, rows, x, (tokens, first, count), out) };
        }
        match (key, matrix.encoding) {
            (Some(key), encoding) => {
                let x = x.integers(key, encoding);
                let task = Task { matrix, rows, x, tokens, first, count, out };
                let kernel = match (encoding, in_planes) {
                    (Encoding::Block(_), _) => self.table.block_rows,
                    (Encoding::Mxfp4, Some(kernel)) => kernel,
                    (Encoding::Nvfp4 { .. }, _) => self.table.nvfp4_rows,
                    _ => self.table.quantised_rows,
                };
                // SAFETY: `new` has checked the features, `check_job` the shapes.
                unsafe { kernel(&task) };
            }
            (None, _) => {
                let task = Task { matrix, rows, x: x.floats(), tokens, first, count, out };
                // SAFETY: as above.
                unsafe { (self.table.float_rows)(&task) };
            }
        }
    }
}

/// How products are cut into pieces: rows and tokens that a worker takes at a time.
#[derive(Clone, Copy)]
struct Pieces {
    /// Rows of a piece that gives each worker two, when some tokens are multiplied.
    share: usize,
    /// Rows times tokens of a piece, when many are.
    area: usize,
}

impl Pieces {
    fn new(jobs: &[MatmulJob<'_>], workers: usize) -> Self {
        let rows: usize = jobs.iter().map(|job| job.matrix.rows).sum();
        let area: usize = jobs.iter().map(|job| job.matrix.rows * job.count()).sum();
        Self { share: rows / (2 * workers), area: area / (PIECES_EACH * workers) }
    }

    /// Rows and tokens of a piece: by bytes where tokens are few, but never less than a register block. Of many tokens
    /// as many rows as use what a kernel has arranged, and the rest of the share in tokens.
    fn shape(self, matrix: &Matrix<'_>, tokens: usize) -> (usize, usize) {
        let row = matrix.encoding.matrix_bytes(1, matrix.columns).max(1);
        let Range { start, end } = MANY_TOKENS_ROWS;
        // Products of floats take the tokens as they are. Routers have few rows, and all workers should share them.
        let arranged = !matches!(matrix.encoding, Encoding::Float(_));
        let (least, unit) = match (tokens < MANY_TOKENS, arranged) {
            (true, _) => (16, 16),
            (false, false) => (self.share.clamp(16, end), 16),
            (false, true) if tokens > TOKENS_UNIT => {
                let rows = (self.area / TOKENS_UNIT).clamp(start, end).next_multiple_of(64);
                let most = tokens.next_multiple_of(TOKENS_UNIT);
                let own = rows.min(matrix.rows).max(1);
                let tokens =
                    (self.area / own).next_multiple_of(TOKENS_UNIT).clamp(TOKENS_UNIT, most);
                return (rows, tokens);
            }
            (false, true) => (self.share.clamp(start, end), 64),
        };
        ((PIECE_BYTES / row).max(least).next_multiple_of(unit), tokens.max(1))
    }

    /// Pieces of a job.
    fn count(self, job: &MatmulJob<'_>) -> usize {
        let (rows, tokens) = self.shape(&job.matrix, job.count());
        job.matrix.rows.div_ceil(rows) * job.count().div_ceil(tokens)
    }

    /// Rows and tokens of a piece: those of the same rows follow each other, so that they are read once.
    fn piece(self, matrix: &Matrix<'_>, all: usize, piece: usize) -> (Range<usize>, Range<usize>) {
        let (rows, tokens) = self.shape(matrix, all);
        let across = all.div_ceil(tokens);
        let (row, token) = (piece / across * rows, piece % across * tokens);
        (row..(row + rows).min(matrix.rows), token..(token + tokens).min(all))
    }
}

impl Tokens<'_> {
    /// How many of `x` they are.
    fn count(self, x: &Activations) -> usize {
        match self {
            Tokens::All => x.tokens(),
            Tokens::Rows(rows) => rows.len(),
        }
    }
}

impl MatmulJob<'_> {
    fn count(&self) -> usize {
        self.tokens.count(self.x)
    }
}

fn check_job(job: &MatmulJob<'_>) {
    let Matrix { rows, columns, .. } = job.matrix;
    assert_eq!(job.x.columns(), columns, "columns of the activations and of the {rows}-row matrix");
    assert_eq!(job.out.len(), job.count() * rows, "outputs of a product [{}, {rows}]", job.count());
    if let Tokens::Rows(tokens) = job.tokens {
        let last = tokens.iter().max().copied().unwrap_or(0) as usize;
        let have = job.x.tokens();
        assert!(tokens.is_empty() || last < have, "token {last} of {have} activations");
    }
}
