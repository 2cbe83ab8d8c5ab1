//! Matrices that lie inputs before outputs: what GPTQ, AWQ and AutoRound write, checked and described for the packer.
//!
//! `qweight` holds the codes, `qzeros` the zero points, `scales` the scales of a matrix, `g_idx` the group of each
//! input. A value is `(code - zero point) * scale`. A row of outputs is not contiguous, so no kernel reads these in
//! place: a pack holds them turned, code for code, as [`Encoding::Zeroed`], or as [`Encoding::Symmetric`] where all
//! zero points are the middle of the codes. Layouts as in the packages AutoGPTQ, GPTQModel, AutoAWQ and AutoRound.

pub(super) mod config;

use std::collections::BTreeMap;
use std::path::Path;

use kernels::format::{Encoding, FloatType};

use super::assemble::{extent, path};
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::safetensors::{RawTensor, RawType};
use super::{Checkpoint, CheckpointFile, Extent, FileId, Integer, Tensor};
use config::{Packing, Quantised};

/// What the names of codes end with.
pub(super) const CODES: &str = ".qweight";
/// What the names of zero points end with.
pub(super) const ZEROS: &str = ".qzeros";
/// What the names of orders of inputs end with.
pub(super) const ORDER: &str = ".g_idx";

/// Bits of a word.
const WORD_BITS: usize = 32;
/// Bytes of a word.
pub(crate) const WORD: usize = WORD_BITS / 8;

/// How words hold codes and zero points. In both layouts zero points lie as `[groups, outputs * bits / 32]` words and
/// scales as `[groups, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Words `[inputs * bits / 32, outputs]`: a word holds consecutive inputs of an output, low bits first; zero points
    /// of consecutive outputs, low bits first.
    Gptq {
        /// Whether zero points are stored less one, as all versions but `gptq_v2` do.
        less_one: bool,
    },
    /// Words `[inputs, outputs / 8]`: bits `4 i` and up of a word hold output [`AWQ_ORDER`]`[i]` of eight, in codes and
    /// in zero points.
    Awq,
}

/// Which of eight outputs each four bits of a word of AutoAWQ's kernels hold, from the low ones.
pub(crate) const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A matrix that lies inputs before outputs. Its [`Tensor`] has shape and encoding as in a pack, and extents as in the
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputMajor {
    /// Name of the matrix in the file, without the ends of its parts.
    pub(crate) stem: String,
    pub(crate) layout: Layout,
    /// Outputs.
    pub(crate) rows: usize,
    /// Inputs.
    pub(crate) columns: usize,
    /// Inputs that share a scale in the file: one group or several of the encoding.
    pub(crate) group: usize,
    /// In a pack.
    pub(crate) encoding: Encoding,
    pub(crate) scales: Extent,
    pub(crate) zeros: Extent,
    /// The group of each input, `[inputs]` words.
    pub(crate) order: Option<Extent>,
}

/// Matrices that lie inputs before outputs, by where their codes begin.
#[derive(Clone, Debug, Default)]
pub struct InputMajors(BTreeMap<(FileId, u64), InputMajor>);

impl InputMajors {
    /// Adds the matrix with these codes.
    pub(super) fn insert(&mut self, codes: Extent, described: InputMajor) {
        self.0.insert((codes.file, codes.offset), described);
    }
}

/// One of the tensors of a matrix.
pub(super) type Part = (FileId, RawTensor);

impl InputMajor {
    /// Bits of a code.
    pub(crate) fn bits(&self) -> usize {
        match self.encoding {
            Encoding::Symmetric { bits, .. } | Encoding::Zeroed { bits, .. } => bits.into(),
            _ => unreachable!("codes with scales"),
        }
    }

    /// Type of the scales.
    pub(crate) fn scale(&self) -> FloatType {
        match self.encoding {
            Encoding::Symmetric { scale, .. } | Encoding::Zeroed { scale, .. } => scale,
            _ => unreachable!("codes with scales"),
        }
    }

    /// Groups of the encoding that one of the file becomes.
    pub(crate) fn repeats(&self) -> usize {
        self.group / self.encoding.block_values()
    }
}

impl Checkpoint {
    /// The description of a matrix whose codes begin here, if it lies inputs before outputs.
    pub(crate) fn input_major(&self, codes: Extent) -> Option<&InputMajor> {
        self.input_majors.0.get(&(codes.file, codes.offset))
    }

    /// The checkpoint, if it can be read where it lies.
    ///
    /// # Errors
    /// The first matrix that cannot.
    pub(super) fn in_place(self) -> Result<Self, FormatError> {
        match self.input_majors.0.first_key_value() {
            None => Ok(self),
            Some((&(file, _), first)) => Err(FormatError::ToPack {
                file: self.files[file.0 as usize].path.clone(),
                field: crate::shown::shown(&format!("{}{CODES}", first.stem)).to_string(),
            }),
        }
    }
}

/// Refuses parts that only a matrix of codes has.
pub(super) fn refuse_strays(path: &Path, others: &[Option<Part>]) -> Result<(), FormatError> {
    let strays = others.iter().flatten().map(|(_, tensor)| tensor);
    let mut strays = strays.filter(|it| it.name.ends_with(ZEROS) || it.name.ends_with(ORDER));
    match strays.next() {
        None => Ok(()),
        Some(stray) => {
            let found = "belongs to weights of GPTQ or AWQ, but the matrix has no qweight";
            Err(FormatError::invalid(path, &stray.name, found, DOWNLOAD_AGAIN))
        }
    }
}

/// A part that contradicts another or the configuration.
fn invalid(files: &[CheckpointFile], (file, tensor): &Part, found: String) -> FormatError {
    FormatError::invalid(path(files, *file), &tensor.name, found, DOWNLOAD_AGAIN)
}

/// The matrix `name` of codes, scales, zero points and perhaps the order of its inputs; `config` is the file of
/// `quantised`.
///
/// # Errors
/// Parts that are missing, and types and shapes that contradict each other or the configuration.
pub(super) fn matrix(
    config: &Path,
    files: &[CheckpointFile],
    name: &str,
    codes: Part,
    [scales, zeros, order]: [Option<Part>; 3],
    quantised: Option<&Quantised>,
) -> Result<(Tensor, InputMajor), FormatError> {
    let Some(quantised) = quantised else {
        let found = "weights of GPTQ or AWQ, but config.json has no quantization_config of these";
        return Err(invalid(files, &codes, found.to_owned()));
    };
    let Some(packing) = quantised.of(name) else {
        let found = "quantised, but config.json has it with 16 bits".to_owned();
        return Err(invalid(files, &codes, found));
    };
    let stem = codes.1.name.strip_suffix(CODES).unwrap_or(&codes.1.name).to_owned();
    let missing = |end: &str| invalid(files, &codes, format!("{stem}{end} is missing"));
    let scales = scales.ok_or_else(|| missing(".scales"))?;
    let zeros = zeros.ok_or_else(|| missing(ZEROS))?;
    if !zeros.1.name.ends_with(ZEROS) {
        return Err(invalid(files, &zeros, "has no place next to a qweight".to_owned()));
    }
    let Some(scale) = scales.1.dtype.float() else {
        return Err(invalid(files, &scales, format!("scales of {}", scales.1.dtype.name())));
    };
    let [rows, columns] = shape(files, &codes, packing)?;
    let group = packing.group.unwrap_or(columns);
    check(files, [&codes, &scales, &zeros], [rows, columns, group], packing)?;
    if order.is_none() && quantised.act_order() {
        let found = format!("true, but {stem} has no g_idx");
        let field = quantised.field("desc_act");
        return Err(FormatError::invalid(config, field, found, DOWNLOAD_AGAIN));
    }
    if let Some(part) = &order {
        let RawTensor { dtype, shape, .. } = &part.1;
        if (*dtype, &shape[..]) != (RawType::Whole(Integer::I32), &[columns][..]) {
            let found = format!("{} {shape:?}, not I32 [{columns}]", dtype.name());
            return Err(invalid(files, part, found));
        }
    }
    let extent = |(file, tensor): &Part| extent(*file, tensor);
    let (codes, scales, zeros) = (extent(&codes), extent(&scales), extent(&zeros));
    let encoding = encoding(packing, group, scale);
    let (layout, order) = (packing.layout, order.as_ref().map(extent));
    let described =
        InputMajor { stem, layout, rows, columns, group, encoding, scales, zeros, order };
    let none = Extent { length: 0, ..zeros };
    let zeros = if packing.symmetric { none } else { zeros };
    let (shape, scales_biases) = (vec![rows, columns], Some((scales, zeros)));
    let tensor = Tensor { shape, element: encoding.into(), weight: codes, scales_biases };
    Ok((tensor, described))
}

/// Rows and columns of the matrix of `codes`.
fn shape(
    files: &[CheckpointFile],
    part: &Part,
    packing: Packing,
) -> Result<[usize; 2], FormatError> {
    let codes = &part.1;
    let invalid = |found: String| invalid(files, part, found);
    if codes.shape.contains(&0) {
        return Err(invalid(format!("shape {:?} holds nothing", codes.shape)));
    }
    let (RawType::Whole(Integer::I32), &[first, second]) = (codes.dtype, &codes.shape[..]) else {
        let found = format!("{} {:?}, not I32 of two dimensions", codes.dtype.name(), codes.shape);
        return Err(invalid(found));
    };
    let per_word = WORD_BITS / usize::from(packing.bits);
    let values = |words: usize| {
        let values = words.checked_mul(per_word);
        values.ok_or_else(|| invalid(format!("{:?} holds more values than can be", codes.shape)))
    };
    let [rows, columns] = match packing.layout {
        Layout::Gptq { .. } => [second, values(first)?],
        Layout::Awq => [values(second)?, first],
    };
    if !rows.is_multiple_of(per_word) {
        let found = format!("{rows} outputs, no multiple of {per_word}: zero points fill words");
        return Err(invalid(found));
    }
    Ok([rows, columns])
}

/// Checks groups, and shapes and types of scales and zero points.
fn check(
    files: &[CheckpointFile],
    [codes, scales, zeros]: [&Part; 3],
    [rows, columns, group]: [usize; 3],
    packing: Packing,
) -> Result<(), FormatError> {
    let bits = packing.bits;
    let said = match packing.group {
        Some(group) => format!("{bits} bits in groups of {group} as config.json has it"),
        None => format!("{bits} bits with a scale for each row as config.json has it"),
    };
    if !columns.is_multiple_of(group) || !group.is_multiple_of(config::GROUPS[0]) {
        let found = format!("{columns} inputs are not whole groups of {group} of 32 and more");
        let (file, tensor) = codes;
        return Err(FormatError::unsupported(
            path(files, *file),
            &tensor.name,
            found,
            config::READ,
        ));
    }
    let groups = columns / group;
    if scales.1.shape != [groups, rows] {
        let shapes = format!("{:?} with qweight {:?}", scales.1.shape, codes.1.shape);
        let found = format!("{shapes} contradicts {said}, which asks for [{groups}, {rows}]");
        return Err(invalid(files, scales, found));
    }
    let expected = [groups, rows * usize::from(bits) / WORD_BITS];
    let RawTensor { dtype, shape, .. } = &zeros.1;
    if (*dtype, &shape[..]) != (RawType::Whole(Integer::I32), &expected[..]) {
        let found = format!("{} {shape:?}", dtype.name());
        let found = format!("{found} contradicts {said}, which asks for I32 {expected:?}");
        return Err(invalid(files, zeros, found));
    }
    Ok(())
}

/// The encoding in a pack. Groups of the file that no encoding has become several with the same scale.
fn encoding(packing: Packing, group: usize, scale: FloatType) -> Encoding {
    let known = config::GROUPS.into_iter().rev().find(|known| group.is_multiple_of(*known));
    let group = known.unwrap_or(config::GROUPS[0]) as u16;
    match packing.symmetric {
        true => Encoding::Symmetric { bits: packing.bits, group, scale },
        false => Encoding::Zeroed { bits: packing.bits, group, scale },
    }
}
