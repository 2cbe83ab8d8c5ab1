//! Activations prepared for products: binary32 for float weights, 16-bit integers for quantised ones.
//!
//! A 16-bit activation is `round(x / d)` with one `d` per token and weight group, chosen so that
//! the largest magnitude of the group becomes [`LARGEST`]. The sum of products of one group is then
//! an exact integer whatever the instruction set, and only its combination with scale and bias
//! rounds (`table.rs` states the order). [`LARGEST`] is below 2^15 so that every value splits into
//! two signed bytes, `high * 256 + low`, for instructions that multiply bytes.
//!
//! Values are stored permuted, so that a kernel meets them in the order in which shifts and masks
//! unpack the weights: the permutation happens once per activation and not once per weight. The
//! permutation ([`Packing`]) depends on the instruction set and on the width of the weights.

use crate::format::Encoding;

/// The largest magnitude of a 16-bit activation: 127 * 256 + 127.
pub(crate) const LARGEST: f32 = 32639.0;

/// Groups are padded with zeros to a multiple of this: the lanes that combine group sums.
pub(crate) const GROUP_LANES: usize = 16;

/// Columns are padded with zeros to a multiple of this: the longest unpacking step.
pub(crate) const COLUMN_PAD: usize = 256;

/// One cache line, the alignment of everything in [`Activations`].
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read as bytes")] [u8; 64]);

/// Order in which the 16-bit activations of one token are stored. All take two bytes per value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// `i16` in column order.
    Natural,
    /// Steps of `16 * per_word` columns as `per_word` vectors of 16 `i16`; vector `p` holds the
    /// columns `per_word * i + p`: the order in which a shift and a mask unpack 16-bit words.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "a packing of AVX2"))]
    Words {
        /// Weights in a 16-bit word: 2, 4 or 8.
        per_word: usize,
    },
    /// Steps of `64 * per_byte` columns as `2 * per_byte` vectors of 64 `i8`: the high bytes of the
    /// columns `per_byte * i + p` for every `p`, then the low bytes.
    Planes {
        /// Weights in a byte: 1, 2 or 4.
        per_byte: usize,
    },
}

/// What a prepared set of 16-bit activations depends on besides `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegerKey {
    pub(crate) packing: Packing,
    /// Columns that share one scale.
    pub(crate) group: usize,
}

/// 16-bit activations in one packing.
struct IntegerSet {
    key: IntegerKey,
    /// Whether this set was written by the latest `prepare`.
    current: bool,
    /// `[tokens, padded columns]`, two bytes each.
    values: Vec<Line>,
    /// `[tokens, padded groups]` scales `d`, then as many sums `d * sum(values of the group)`.
    factors: Vec<f32>,
}

/// Reusable buffers that hold `x [tokens, columns]` in every form that the products need.
///
/// Written by [`Compute::prepare`](crate::Compute::prepare). Buffers grow only there, and only when
/// more tokens or columns or another encoding are asked for than ever before.
pub struct Activations {
    tokens: usize,
    columns: usize,
    capacity: usize,
    /// `[tokens, columns]`; meaningful when `float_current`.
    floats: Vec<f32>,
    float_current: bool,
    sets: Vec<IntegerSet>,
}

/// A read-only view of one packing of all tokens.
#[derive(Clone, Copy)]
pub(crate) struct IntegerView<'a> {
    values: &'a [Line],
    factors: &'a [f32],
    tokens: usize,
    /// Padded columns of a token; its values take twice as many bytes.
    pub(crate) padded_columns: usize,
    /// Padded groups of a token.
    pub(crate) padded_groups: usize,
}

impl IntegerView<'_> {
    /// The packed values of a token: `2 * padded_columns` bytes, 64-byte aligned.
    #[inline(always)]
    pub(crate) fn values(&self, token: usize) -> &[u8] {
        let lines = self.padded_columns * 2 / 64;
        let lines = &self.values[token * lines..(token + 1) * lines];
        // SAFETY: a line is 64 bytes without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 64) }
    }

    /// The group scales of a token: `padded_groups` floats.
    #[inline(always)]
    pub(crate) fn scales(&self, token: usize) -> &[f32] {
        &self.factors[token * self.padded_groups..(token + 1) * self.padded_groups]
    }

    /// The group sums of a token, times the group scale: `padded_groups` floats.
    #[inline(always)]
    pub(crate) fn sums(&self, token: usize) -> &[f32] {
        let start = (self.tokens + token) * self.padded_groups;
        &self.factors[start..start + self.padded_groups]
    }
}

/// The places that `prepare` fills for one packing.
pub(crate) struct IntegerTarget<'a> {
    pub(crate) key: IntegerKey,
    pub(crate) values: &'a mut [u8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
    pub(crate) padded_columns: usize,
    pub(crate) padded_groups: usize,
}

impl Activations {
    /// Buffers for `tokens` rows of `columns` in binary32 and in one integer packing of groups of
    /// 64; further packings are added when [`Compute::prepare`](crate::Compute::prepare) meets them.
    pub fn with_capacity(tokens: usize, columns: usize) -> Self {
        Self {
            tokens: 0,
            columns: 0,
            capacity: tokens * columns,
            floats: Vec::with_capacity(tokens * columns),
            float_current: false,
            sets: Vec::new(),
        }
    }

    /// Tokens of the latest `prepare`.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns of the latest `prepare`.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes that the buffers occupy now.
    pub fn bytes(&self) -> usize {
        let sets = self.sets.iter().map(|s| s.values.capacity() * 64 + s.factors.capacity() * 4);
        self.floats.capacity() * 4 + sets.sum::<usize>()
    }

    /// Most bytes that buffers for `tokens` rows of `columns` come to occupy with `packings` integer
    /// packings, whatever their groups: for plans that must not be exceeded.
    pub fn bytes_bound(tokens: usize, columns: usize, packings: usize) -> usize {
        let groups = (columns / 16).next_multiple_of(GROUP_LANES);
        let packed = columns.next_multiple_of(COLUMN_PAD) * 2 + groups * 2 * 4;
        tokens * (columns * 4 + packings * packed)
    }

    /// Forgets what was prepared and takes the new shape.
    pub(crate) fn reset(&mut self, tokens: usize, columns: usize) {
        self.tokens = tokens;
        self.columns = columns;
        self.capacity = self.capacity.max(tokens * columns);
        self.float_current = false;
        for set in &mut self.sets {
            set.current = false;
        }
    }

    /// Whether the binary32 rows are prepared.
    pub(crate) fn has_floats(&self) -> bool {
        self.float_current
    }

    /// Room for the binary32 copy of the current shape.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        self.float_current = true;
        self.floats.reserve_exact(self.capacity.saturating_sub(self.floats.len()));
        let needed = self.tokens * self.columns;
        grow(&mut self.floats, needed, 0.0);
        &mut self.floats[..needed]
    }

    /// Room for one packing of the current shape; `None` if it is already prepared.
    pub(crate) fn integers_mut(&mut self, key: IntegerKey) -> Option<IntegerTarget<'_>> {
        let index = self.sets.iter().position(|s| s.key == key).unwrap_or_else(|| {
            let empty = IntegerSet { key, current: false, values: Vec::new(), factors: Vec::new() };
            self.sets.push(empty);
            self.sets.len() - 1
        });
        let padded_columns = self.columns.next_multiple_of(COLUMN_PAD);
        let padded_groups = (self.columns / key.group).next_multiple_of(GROUP_LANES);
        let set = &mut self.sets[index];
        if set.current {
            return None;
        }
        set.current = true;
        let (lines, groups) = (self.tokens * padded_columns * 2 / 64, self.tokens * padded_groups);
        grow(&mut set.values, lines, Line([0; 64]));
        grow(&mut set.factors, 2 * groups, 0.0);
        let (scales, sums) = set.factors[..2 * groups].split_at_mut(groups);
        let lines = &mut set.values[..lines];
        // SAFETY: a line is 64 initialised bytes without padding.
        let values = unsafe {
            std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), lines.len() * 64)
        };
        Some(IntegerTarget { key, values, scales, sums, padded_columns, padded_groups })
    }

    /// The binary32 rows `[tokens, columns]`.
    ///
    /// # Panics
    ///
    /// If the latest `prepare` did not name a float encoding (or binary32 arithmetic).
    pub(crate) fn floats(&self) -> &[f32] {
        assert!(self.float_current, "activations were not prepared for float weights");
        &self.floats[..self.tokens * self.columns]
    }

    /// One integer packing.
    ///
    /// # Panics
    ///
    /// If the latest `prepare` did not name an encoding of this width and group.
    pub(crate) fn integers(&self, key: IntegerKey, encoding: Encoding) -> IntegerView<'_> {
        let set = self.sets.iter().find(|s| s.key == key && s.current);
        let set =
            set.unwrap_or_else(|| panic!("activations were not prepared for {encoding:?} weights"));
        IntegerView {
            values: &set.values,
            factors: &set.factors,
            tokens: self.tokens,
            padded_columns: self.columns.next_multiple_of(COLUMN_PAD),
            padded_groups: (self.columns / key.group).next_multiple_of(GROUP_LANES),
        }
    }
}

/// Makes a buffer at least `needed` long. It never becomes shorter: growing again would write zeros, on one thread,
/// over what `prepare` fills anyway.
fn grow<T: Clone>(buffer: &mut Vec<T>, needed: usize, empty: T) {
    if buffer.len() < needed {
        buffer.resize(needed, empty);
    }
}

/// Stores 16-bit activations of one whole step at its place: `step` are the values in column order,
/// `out` twice as many bytes.
#[inline(always)]
pub(crate) fn arrange(packing: Packing, step: &[i16; COLUMN_PAD], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * COLUMN_PAD, "bytes of one step");
    match packing {
        Packing::Natural => {
            for (value, place) in step.iter().zip(out.chunks_exact_mut(2)) {
                place.copy_from_slice(&value.to_le_bytes());
            }
        }
        Packing::Words { per_word } => {
            for (i, place) in out.chunks_exact_mut(2).enumerate() {
                let (base, within) = (i / (16 * per_word) * 16 * per_word, i % (16 * per_word));
                let column = base + within % 16 * per_word + within / 16;
                place.copy_from_slice(&step[column].to_le_bytes());
            }
        }
        Packing::Planes { per_byte: 1 } => planes::<1>(step, out),
        Packing::Planes { per_byte: 2 } => planes::<2>(step, out),
        Packing::Planes { .. } => planes::<4>(step, out),
    }
}

/// [`Packing::Planes`] with the stride known to the compiler, so that it vectorises.
#[inline(always)]
fn planes<const PER_BYTE: usize>(step: &[i16; COLUMN_PAD], out: &mut [u8]) {
    for (from, to) in step.chunks_exact(64 * PER_BYTE).zip(out.chunks_exact_mut(128 * PER_BYTE)) {
        let (high, low) = to.split_at_mut(64 * PER_BYTE);
        for plane in 0..PER_BYTE {
            for i in 0..64 {
                let value = from[i * PER_BYTE + plane];
                // value = high * 256 + low with a signed low byte.
                high[plane * 64 + i] = (value.wrapping_add(128) >> 8) as u8;
                low[plane * 64 + i] = value as u8;
            }
        }
    }
}
