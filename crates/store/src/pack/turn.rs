//! Matrices that lie inputs before outputs, read with outputs first: a transposition of words, code for code.
//!
//! A run of outputs is read alone, so that memory does not grow with the matrix. What only the bytes say is checked
//! here: scales that are numbers, zero points that are what the configuration says, inputs in groups in their order.

use std::ops::Range;
use std::path::Path;

use kernels::format::{Encoding, FloatType};

use super::PackError;
use super::direct::SourceFile;
use super::finite::Plane;
use crate::format::input_major::{AWQ_ORDER, InputMajor, Layout, WORD};
use crate::format::{Checkpoint, Extent, FormatError};

/// A run of outputs is a multiple of this, but at the end of a matrix: a word holds no more.
pub(super) const ROWS_TOGETHER: usize = 8;

/// Side of the square that is transposed at a time, in units.
const TILE: usize = 32;

/// What to do about bytes that are not as the configuration says.
const DAMAGED: &str = "download the model again, or use another release";

/// The three planes of a run of outputs in the matrix's encoding.
pub(super) struct Planes {
    pub(super) weight: Vec<u8>,
    pub(super) scales: Vec<u8>,
    /// Zero points; empty where the encoding has none.
    pub(super) zeros: Vec<u8>,
}

/// Reads matrices of a checkpoint.
pub(super) struct Turner<'a> {
    pub(super) source: &'a Checkpoint,
    pub(super) opened: &'a [SourceFile],
}

/// A plane of a file as a matrix of units of some bytes.
#[derive(Clone, Copy)]
struct Units {
    extent: Extent,
    bytes: usize,
    /// Units of a line of the file.
    across: usize,
}

impl Turner<'_> {
    /// Rows `rows` of the matrix whose codes are `codes`: [`ROWS_TOGETHER`] and multiples, or up to the end.
    ///
    /// # Errors
    /// A read that fails, or bytes that are not what the configuration says.
    pub(super) fn rows(
        &self,
        codes: Extent,
        matrix: &InputMajor,
        rows: Range<usize>,
    ) -> Result<Planes, PackError> {
        if rows.start == 0 {
            self.check_order(matrix)?;
        }
        Ok(Planes {
            weight: self.codes(codes, matrix, &rows)?,
            scales: self.scales(matrix, &rows)?,
            zeros: self.zeros(matrix, &rows)?,
        })
    }

    /// Codes `[rows, columns]`, packed along columns.
    fn codes(
        &self,
        extent: Extent,
        matrix: &InputMajor,
        rows: &Range<usize>,
    ) -> Result<Vec<u8>, PackError> {
        let per_word = 32 / matrix.bits();
        let (lines, across, range) = match matrix.layout {
            Layout::Gptq { .. } => (matrix.columns / per_word, matrix.rows, rows.clone()),
            Layout::Awq => (matrix.columns, matrix.rows / per_word, words(rows, per_word)),
        };
        let read = self.columns(Units { extent, bytes: WORD, across }, lines, range.clone())?;
        let mut turned = vec![0; read.len()];
        transpose::<WORD>(&read, range.len(), &mut turned);
        if matrix.layout == Layout::Awq {
            return Ok(awq_codes(&turned, matrix.columns));
        }
        Ok(turned)
    }

    /// Scales `[rows, groups]`.
    fn scales(&self, matrix: &InputMajor, rows: &Range<usize>) -> Result<Vec<u8>, PackError> {
        let scale = matrix.scale();
        let groups = matrix.columns / matrix.group;
        let units = Units { extent: matrix.scales, bytes: scale.bytes(), across: matrix.rows };
        let read = self.columns(units, groups, rows.clone())?;
        if let Some(wrong) = Plane::Float(scale).first_wrong(&read) {
            let unit = wrong / scale.bytes();
            let (group, row) = (unit / rows.len(), rows.start + unit % rows.len());
            return Err(PackError::NotFinite {
                path: self.path(matrix.scales).to_owned(),
                name: format!("{}.scales", matrix.stem),
                offset: matrix.scales.offset + ((group * matrix.rows + row) * scale.bytes()) as u64,
            });
        }
        let mut turned = vec![0; read.len()];
        match scale {
            FloatType::F32 => transpose::<4>(&read, rows.len(), &mut turned),
            FloatType::F16 | FloatType::Bf16 => transpose::<2>(&read, rows.len(), &mut turned),
        }
        Ok(repeat(&turned, scale.bytes(), matrix.repeats()))
    }

    /// Words of zero points `[rows * bits / 32, groups]`, or none where all are the middle of the codes.
    fn zeros(&self, matrix: &InputMajor, rows: &Range<usize>) -> Result<Vec<u8>, PackError> {
        let bits = matrix.bits();
        let per_word = 32 / bits;
        let groups = matrix.columns / matrix.group;
        let (across, range) = (matrix.rows / per_word, words(rows, per_word));
        let units = Units { extent: matrix.zeros, bytes: WORD, across };
        let mut read = self.columns(units, groups, range.clone())?;
        for (index, bytes) in read.chunks_exact_mut(WORD).enumerate() {
            let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let word = zero_points(word, matrix).map_err(|(place, found)| {
                let (group, word) = (index / range.len(), range.start + index % range.len());
                let at = format!("group {group} of output {}", word * per_word + place);
                self.invalid(matrix.zeros, &format!("{}.qzeros", matrix.stem), &at, &found)
            })?;
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        if matches!(matrix.encoding, Encoding::Symmetric { .. }) {
            return Ok(Vec::new());
        }
        let mut turned = vec![0; read.len()];
        transpose::<WORD>(&read, range.len(), &mut turned);
        Ok(repeat(&turned, WORD, matrix.repeats()))
    }

    /// Refuses inputs that are in groups in another order than theirs.
    fn check_order(&self, matrix: &InputMajor) -> Result<(), PackError> {
        let Some(order) = matrix.order else { return Ok(()) };
        let units = Units { extent: order, bytes: WORD, across: matrix.columns };
        let read = self.columns(units, 1, 0..matrix.columns)?;
        for (input, bytes) in read.chunks_exact(WORD).enumerate() {
            let found = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let expected = input / matrix.group;
            if usize::try_from(found) != Ok(expected) {
                let field = format!("{}.g_idx", matrix.stem);
                let found = format!("is in group {found}, not {expected}: act order (desc_act)");
                let remedy = "use a release with desc_act false";
                let found = format!("input {input} {found}");
                return Err(FormatError::unsupported(self.path(order), field, found, remedy).into());
            }
        }
        Ok(())
    }

    /// Columns `range` of a plane of `lines` lines, as lines of their own.
    fn columns(
        &self,
        units: Units,
        lines: usize,
        range: Range<usize>,
    ) -> Result<Vec<u8>, PackError> {
        let Units { extent, bytes, across } = units;
        let length = range.len() * bytes;
        let mut read = vec![0; lines * length];
        let file = &self.opened[extent.file.0 as usize];
        let failed = |error| PackError::io(self.path(extent), "read", error);
        if range.len() == across {
            file.read(&mut read, extent.offset).map_err(failed)?;
            return Ok(read);
        }
        for (line, part) in read.chunks_exact_mut(length).enumerate() {
            let offset = extent.offset + ((line * across + range.start) * bytes) as u64;
            file.read(part, offset).map_err(failed)?;
        }
        Ok(read)
    }

    fn path(&self, extent: Extent) -> &Path {
        &self.source.files[extent.file.0 as usize].path
    }

    fn invalid(&self, extent: Extent, field: &str, at: &str, found: &str) -> PackError {
        FormatError::invalid(self.path(extent), field, format!("{at} {found}"), DAMAGED).into()
    }
}

/// The words that rows fill.
fn words(rows: &Range<usize>, per_word: usize) -> Range<usize> {
    rows.start / per_word..rows.end / per_word
}

/// The zero points of a word with those of consecutive outputs from the low bits up; or which is wrong, and how.
fn zero_points(word: u32, matrix: &InputMajor) -> Result<u32, (usize, String)> {
    let bits = matrix.bits();
    let (most, middle) = ((1u32 << bits) - 1, 1u32 << (bits - 1));
    let symmetric = matches!(matrix.encoding, Encoding::Symmetric { .. });
    (0..32 / bits).try_fold(0, |out, place| {
        let stored = word >> (place * bits) & most;
        let (row, zero) = match matrix.layout {
            Layout::Gptq { less_one } => (place, stored + u32::from(less_one)),
            Layout::Awq => (AWQ_ORDER[place], stored),
        };
        if zero > most {
            // Packages read it as zero or as one more than any code.
            let found =
                format!("has zero point {zero} (stored as {stored}), more than {bits} bits");
            return Err((row, found));
        }
        if symmetric && zero != middle {
            let found =
                format!("has zero point {zero}, not {middle}, but config.json says symmetric");
            return Err((row, found));
        }
        Ok(out | zero << (row * bits))
    })
}

/// `from`, lines of `across` units of `N` bytes, with lines and columns exchanged.
fn transpose<const N: usize>(from: &[u8], across: usize, to: &mut [u8]) {
    let (from, _) = from.as_chunks::<N>();
    let (to, _) = to.as_chunks_mut::<N>();
    let down = from.len() / across.max(1);
    for first_line in (0..down).step_by(TILE) {
        for first in (0..across).step_by(TILE) {
            for column in first..across.min(first + TILE) {
                for line in first_line..down.min(first_line + TILE) {
                    to[column * down + line] = from[line * across + column];
                }
            }
        }
    }
}

/// Codes of rows, packed along columns, from words `[rows / 8, columns]` that hold those of eight rows: squares of
/// eight codes by eight, each turned.
fn awq_codes(turned: &[u8], columns: usize) -> Vec<u8> {
    let mut out = vec![0; turned.len()];
    let (words, _) = turned.as_chunks::<WORD>();
    let (to, _) = out.as_chunks_mut::<WORD>();
    let across = columns / 8;
    for (square, words) in words.chunks_exact(8).enumerate() {
        let (eight, column) = (square / across, square % across);
        for (place, row) in AWQ_ORDER.into_iter().enumerate() {
            let codes = words.iter().enumerate().map(|(at, word)| {
                let code = u32::from_le_bytes(*word) >> (4 * place) & 15;
                code << (4 * at)
            });
            let codes: u32 = codes.sum();
            to[(eight * 8 + row) * across + column] = codes.to_le_bytes();
        }
    }
    out
}

/// Each unit of some bytes so many times.
fn repeat(units: &[u8], bytes: usize, times: usize) -> Vec<u8> {
    if times == 1 {
        return units.to_vec();
    }
    units
        .chunks_exact(bytes)
        .flat_map(|unit| std::iter::repeat_n(unit, times))
        .flatten()
        .copied()
        .collect()
}
