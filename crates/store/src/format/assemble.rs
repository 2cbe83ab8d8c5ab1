//! From raw tensors to matrices and expert tables.
//!
//! The parts of a quantised matrix are brought together and checked against each other and against the
//! configuration; routed experts are cut out of whatever holds them (one tensor per expert, all experts
//! stacked, gate and up in one tensor) into one table per layer.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::format::Encoding;

use super::config::{Dimensions, keys};
use super::deepseek_v4;
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::head::{self, Head};
use super::input_major::{self, InputMajors};
use super::layer::LayerBuilder;
use super::names::{self, Meaning, Part};
use super::published::Published;
use super::quantization::{Quantization, Scheme};
use super::rows::{self, RowTable, SharedScale};
use super::safetensors::{RawTensor, RawType};
use super::scaled::{self, Refusal};
use super::{CheckpointFile, Element, Extent, FileId, Integer, LayerExperts, Tensor};

/// Where the encoding of a quantised matrix is known from.
pub(crate) enum Schemes<'a> {
    /// From config.json, checked against the shapes.
    Config(&'a Quantization),
    /// From the shapes, the group size being fixed (the ancestor's folders).
    Group(u16),
}

impl Schemes<'_> {
    /// What publishers' tools quantised.
    fn published(&self) -> Published {
        match self {
            Self::Config(quantization) => quantization.published().clone(),
            Self::Group(_) => Published::default(),
        }
    }

    /// What GPTQ, AWQ or AutoRound quantised.
    fn input_major(&self) -> Option<&input_major::config::Quantised> {
        match self {
            Self::Config(quantization) => quantization.input_major(),
            Self::Group(_) => None,
        }
    }
}

/// What a set of raw tensors amounts to.
pub(crate) struct Assembled {
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) experts: Vec<Option<LayerExperts>>,
    /// By canonical name.
    pub(crate) row_tables: BTreeMap<String, RowTable>,
    /// What predicts further tokens.
    pub(crate) head: Head,
    /// Which of all matrices lie inputs before outputs.
    pub(crate) input_majors: InputMajors,
    pub(crate) skipped: Vec<String>,
    pub(crate) unused: Vec<String>,
    /// True when all convolution kernels lie as `[C, K, 1]`, false when as `[C, 1, K]`; `None` without
    /// any.
    pub(crate) convolutions_converted: Option<bool>,
}

/// Parts of one matrix: weight, scales, biases, order of inputs.
type Parts = [Option<(FileId, RawTensor)>; 4];

/// Assembles the tensors of `files`; `config` is the file to blame for what is missing.
pub(crate) fn assemble(
    config: &Path,
    files: &[CheckpointFile],
    raw: Vec<(FileId, RawTensor)>,
    dimensions: Dimensions,
    schemes: &Schemes<'_>,
) -> Result<Assembled, FormatError> {
    let path = |file: FileId| path(files, file);
    refuse_trunk_beyond(config, &raw, dimensions)?;
    let head::Split { trunk, head: of_head } = head::split(raw, dimensions);
    let names: Vec<String> = of_head.iter().map(|(_, tensor)| tensor.name.clone()).collect();
    let (head, input_majors) = head::assemble(config, files, of_head, dimensions, schemes);
    let published = schemes.published().is_any();
    let mut sorted = Sorted { published, ..Sorted::default() };
    if matches!(head, Head::Unusable(_)) {
        sorted.skipped.extend(names);
    }
    for (file, tensor) in trunk {
        sorted.add(files, dimensions, file, tensor)?;
    }
    let Sorted { matrices, skipped, unused, .. } = sorted;
    let mut built = Built { input_majors, ..Built::default() };
    for (name, (meaning, parts)) in matrices {
        if let (Meaning::Rows { layer, .. }, [None, Some((file, scale)), None, None]) =
            (meaning, &parts)
        {
            // The table's own name comes before those of its parts.
            built.row_scales.insert(layer, SharedScale::read(path(*file), scale)?);
            continue;
        }
        let (file, tensor) = match (&parts, built.rows_of_8_bits(meaning, &parts)) {
            (_, Some(part)) => part,
            ([Some((_, codes)), ..], None) if codes.name.ends_with(input_major::CODES) => {
                built.turned(config, files, &name, parts, schemes)?
            }
            _ => matrix(config, path, &name, parts, schemes)?,
        };
        built.add(path(file), dimensions, name, meaning, (file, tensor))?;
    }
    let Built { tensors, mut builders, convolutions, tables, input_majors, mut row_scales } = built;
    let converted = convolutions.first().copied();
    if convolutions.iter().any(|&other| Some(other) != converted) {
        let found = "some are [channels, 1, width], others [channels, width, 1]";
        return Err(FormatError::invalid(config, "conv1d tensors", found, DOWNLOAD_AGAIN));
    }
    let mut experts = Vec::with_capacity(dimensions.layers);
    for layer in 0..dimensions.layers {
        let built = builders.remove(&layer).map(LayerBuilder::finish).transpose();
        experts.push(built.map_err(|missing| {
            let field = format!("layers.{layer}.mlp.experts{missing}");
            FormatError::invalid(config, field, "missing from the checkpoint", DOWNLOAD_AGAIN)
        })?);
    }
    let row_tables = tables
        .into_iter()
        .map(|(layer, parts)| rows::join(config, files, layer, parts, row_scales.remove(&layer)));
    let row_tables = row_tables.collect::<Result<_, FormatError>>()?;
    let convolutions_converted = converted;
    Ok(Assembled {
        tensors,
        experts,
        row_tables,
        head,
        input_majors,
        skipped,
        unused,
        convolutions_converted,
    })
}

/// The file that an extent or tensor names.
pub(super) fn path(files: &[CheckpointFile], file: FileId) -> &Path {
    files[file.0 as usize].path.as_path()
}

/// Tensors of the trunk by the matrix that they are parts of.
#[derive(Default)]
struct Sorted {
    matrices: BTreeMap<String, (Meaning, Parts)>,
    skipped: Vec<String>,
    unused: Vec<String>,
    /// Whether a publisher's tool quantised the checkpoint, which may say how it rounds activations.
    published: bool,
}

impl Sorted {
    fn add(
        &mut self,
        files: &[CheckpointFile],
        dimensions: Dimensions,
        file: FileId,
        tensor: RawTensor,
    ) -> Result<(), FormatError> {
        let (name, part) = names::canonical(&tensor.name);
        match names::meaning(&name, dimensions.layers, dimensions.drafts) {
            Meaning::Skipped => self.skipped.push(tensor.name),
            Meaning::Unknown if self.published && names::of_activations(&tensor.name) => {
                self.skipped.push(tensor.name);
            }
            Meaning::Unknown => {
                refuse_foreign(path(files, file), &tensor)?;
                self.unused.push(tensor.name);
            }
            _ if part == Part::Shape => {
                let whole = matches!(tensor.dtype, RawType::Whole(_));
                if !whole || tensor.shape != [2] {
                    let found =
                        format!("{} {:?}, not two integers", tensor.dtype.name(), tensor.shape);
                    let path = path(files, file);
                    return Err(FormatError::invalid(path, &tensor.name, found, DOWNLOAD_AGAIN));
                }
            }
            meaning => {
                let entry = self.matrices.entry(name.into_owned());
                let (_, parts) = entry.or_insert_with(|| (meaning, Default::default()));
                let place = &mut parts[part as usize];
                if let Some((other, first)) = place {
                    let other = path(files, *other);
                    let found = format!("means the same as {} in {other:?}", first.name);
                    let (path, remedy) = (path(files, file), "remove one of the two");
                    return Err(FormatError::invalid(path, &tensor.name, found, remedy));
                }
                *place = Some((file, tensor));
            }
        }
        Ok(())
    }
}

/// Matrices by what becomes of them.
#[derive(Default)]
struct Built {
    tensors: BTreeMap<String, Tensor>,
    builders: BTreeMap<usize, LayerBuilder>,
    /// Of each kernel whether it lies as `[C, K, 1]`.
    convolutions: Vec<bool>,
    /// Parts of tables of rows, by layer.
    tables: BTreeMap<usize, BTreeMap<Option<usize>, (FileId, Tensor)>>,
    /// The scale that all rows of a layer's table share.
    row_scales: BTreeMap<usize, SharedScale>,
    input_majors: InputMajors,
}

impl Built {
    /// A part of a table in 8-bit floats that have the table's scale alone.
    fn rows_of_8_bits(&self, meaning: Meaning, parts: &Parts) -> Option<(FileId, Tensor)> {
        let (Meaning::Rows { layer, .. }, [Some((file, rows)), None, None, None]) =
            (meaning, parts)
        else {
            return None;
        };
        let scale = self.row_scales.get(&layer)?;
        let is_8_bits = rows.dtype == RawType::Float8("F8_E4M3");
        is_8_bits.then(|| (*file, scale.part(*file, rows)))
    }

    /// The matrix of parts that lie inputs before outputs, and the file of its codes.
    fn turned(
        &mut self,
        config: &Path,
        files: &[CheckpointFile],
        name: &str,
        [codes, scales, zeros, order]: Parts,
        schemes: &Schemes<'_>,
    ) -> Result<(FileId, Tensor), FormatError> {
        let codes = codes.expect("the caller saw codes");
        let (file, parts) = (codes.0, [scales, zeros, order]);
        let quantised = schemes.input_major();
        let (tensor, described) =
            input_major::matrix(config, files, name, codes, parts, quantised)?;
        self.input_majors.insert(tensor.weight, described);
        Ok((file, tensor))
    }

    /// `path` is the file that holds the weight.
    fn add(
        &mut self,
        path: &Path,
        dimensions: Dimensions,
        name: String,
        meaning: Meaning,
        (file, mut tensor): (FileId, Tensor),
    ) -> Result<(), FormatError> {
        match meaning {
            Meaning::Expert { layer, expert, matrix } => {
                let builder =
                    self.builders.entry(layer).or_insert_with(|| LayerBuilder::new(dimensions));
                let added = builder.add(expert, matrix, &tensor);
                added.map_err(|found| FormatError::invalid(path, &name, found, DOWNLOAD_AGAIN))?;
            }
            Meaning::Rows { layer, part } => {
                self.tables.entry(layer).or_default().insert(part, (file, tensor));
            }
            _ => {
                let shared = |encoding: &Encoding| {
                    encoding.rows_per_scale() > 1 || encoding.shared_bytes() != [0; 3]
                };
                let together = tensor.element.encoding().filter(shared);
                if let Some(encoding) = together.filter(|_| tensor.shape.len() != 2) {
                    let what = match encoding {
                        Encoding::Fp8 { .. } => "tiles of 128 x 128".to_owned(),
                        _ => encoding.name(),
                    };
                    let found = format!("{what} in shape {:?}", tensor.shape);
                    return Err(FormatError::invalid(path, &name, found, DOWNLOAD_AGAIN));
                }
                if name.ends_with(".conv1d") {
                    self.convolutions.push(convolution(path, &name, &mut tensor)?);
                }
                self.tensors.insert(name, tensor);
            }
        }
        Ok(())
    }
}

/// Refuses a layer beyond the last that does not predict further tokens: it is of the trunk, and one would be missing.
fn refuse_trunk_beyond(
    config: &Path,
    raw: &[(FileId, RawTensor)],
    dimensions: Dimensions,
) -> Result<(), FormatError> {
    let mut beyond: BTreeMap<usize, bool> = BTreeMap::new();
    for (_, tensor) in raw {
        let (name, _) = names::canonical(&tensor.name);
        if let Some((layer, rest)) = names::layer(&name)
            && (dimensions.layers..dimensions.layers + dimensions.drafts).contains(&layer)
        {
            *beyond.entry(layer).or_default() |= names::DRAFT.contains(&rest);
        }
    }
    match beyond.into_iter().find(|(_, is_draft)| !is_draft) {
        None => Ok(()),
        Some((layer, _)) => {
            let found = format!(
                "{}, but layer {layer} has none of the tensors ({}) of a layer that predicts further tokens",
                dimensions.layers,
                names::DRAFT.join(", ")
            );
            let field = keys::NUM_HIDDEN_LAYERS.name();
            Err(FormatError::invalid(config, field, found, DOWNLOAD_AGAIN))
        }
    }
}

/// Unknown tensors are listed for the user, unless they say that the known ones mean something else.
fn refuse_foreign(file: &Path, tensor: &RawTensor) -> Result<(), FormatError> {
    match names::foreign_quantisation(&tensor.name) {
        Some(scheme) => Err(FormatError::unsupported(
            file,
            &tensor.name,
            scheme,
            "use the bf16 release or an MLX affine quantisation",
        )),
        None => Ok(()),
    }
}

/// Brings `[C, 1, K]` and `[C, K, 1]` (the same bytes) to `[C, K]`; true for the second.
fn convolution(file: &Path, name: &str, tensor: &mut Tensor) -> Result<bool, FormatError> {
    let (shape, converted) = match tensor.shape[..] {
        [channels, 1, width] if width != 1 => (vec![channels, width], false),
        [channels, width, 1] if width != 1 => (vec![channels, width], true),
        _ => {
            let found = format!("shape {:?}; expected [channels, 1, width]", tensor.shape);
            return Err(FormatError::invalid(file, name, found, DOWNLOAD_AGAIN));
        }
    };
    tensor.shape = shape;
    Ok(converted)
}

/// One matrix from its parts. The file returned is the one that holds the weight.
fn matrix<'a>(
    config: &Path,
    path: impl Fn(FileId) -> &'a Path,
    name: &str,
    parts: Parts,
    schemes: &Schemes<'_>,
) -> Result<(FileId, Tensor), FormatError> {
    let [weight, scales, biases, order] = parts;
    let Some((file, weight)) = weight else {
        let there = scales.or(biases).or(order).map_or_else(String::new, |(_, tensor)| tensor.name);
        let found = format!("weight is missing ({there} is there)");
        return Err(FormatError::invalid(config, name, found, DOWNLOAD_AGAIN));
    };
    let invalid = |found: String| FormatError::invalid(path(file), name, found, DOWNLOAD_AGAIN);
    if weight.shape.is_empty() || weight.shape.contains(&0) {
        return Err(invalid(format!("shape {:?} holds nothing", weight.shape)));
    }
    let path = path(file);
    let rest = [biases, order];
    input_major::refuse_strays(path, &rest)?;
    let [biases, _] = rest;
    let tensor = match (scales, biases) {
        (Some(scales), Some(shared)) if scaled::is_global(&shared.1) => {
            let parts = [(file, weight), scales, shared];
            nvfp4(config, path, name, parts, schemes)
        }
        (Some(scales), Some(zeros)) if zeros.1.name.ends_with(names::ZERO_POINT) => {
            zeroed(path, name, [(file, weight), scales, zeros], schemes)
        }
        (Some(scales), Some(biases)) => {
            affine(config, path, name, [(file, weight), scales, biases], schemes)
        }
        (None, None) if weight.name.ends_with("_blocks") => {
            Err(invalid("blocks of mxfp4 without scales".to_owned()))
        }
        (None, None) => float(path, name, file, weight, schemes),
        (Some(scales), None) => scales_alone(config, path, name, [(file, weight), scales], schemes),
        (None, Some(_)) => Err(invalid("biases without scales".to_owned())),
    };
    Ok((file, tensor?))
}

/// Where a tensor lies.
pub(super) fn extent(file: FileId, tensor: &RawTensor) -> Extent {
    Extent { file, offset: tensor.offset, length: tensor.length }
}

/// A matrix of weights and scales: 8-bit floats, MXFP4, packed integers.
fn scales_alone(
    config: &Path,
    path: &Path,
    name: &str,
    [(file, weight), (scales_file, scales)]: [(FileId, RawTensor); 2],
    schemes: &Schemes<'_>,
) -> Result<Tensor, FormatError> {
    let invalid = |found: String| FormatError::invalid(path, name, found, DOWNLOAD_AGAIN);
    let (shape, encoding) = match scaled::scaled(&weight, &scales, &schemes.published()) {
        None => return Err(invalid("scales without biases".to_owned())),
        Some(found) => found.map_err(|refusal| refusal.of(path, name))?,
    };
    let words = weight.dtype == RawType::U32;
    let said = |quantization: &Quantization| quantization.of(name).is_some_and(|it| it.floats);
    if words && !matches!(schemes, Schemes::Config(quantization) if said(quantization)) {
        let found = "has 8-bit scales but config.json does not say that its mode is mxfp4";
        let field = format!("quantization: {name}");
        return Err(FormatError::invalid(config, field, found, DOWNLOAD_AGAIN));
    }
    let scales = extent(scales_file, &scales);
    let none = Extent { length: 0, ..scales };
    let (element, weight) = (encoding.into(), extent(file, &weight));
    Ok(Tensor { shape, element, weight, scales_biases: Some((scales, none)) })
}

/// A matrix of 4-bit floats in groups of 16, scales, and a number that all scales share.
fn nvfp4(
    config: &Path,
    path: &Path,
    name: &str,
    [(file, weight), (scales_file, scales), (shared_file, shared)]: [(FileId, RawTensor); 3],
    schemes: &Schemes<'_>,
) -> Result<Tensor, FormatError> {
    let (shape, global) =
        scaled::nvfp4(&weight, &scales, &shared).map_err(|refusal| refusal.of(path, name))?;
    if schemes.published().nvfp4 != Some(global) {
        let found = format!("has {}, but config.json says nothing of such", shared.name);
        let field = format!("quantization_config: {name}");
        return Err(FormatError::invalid(config, field, found, DOWNLOAD_AGAIN));
    }
    let (element, weight) = (Encoding::Nvfp4 { global }.into(), extent(file, &weight));
    let scales_biases = Some((extent(scales_file, &scales), extent(shared_file, &shared)));
    Ok(Tensor { shape, element, weight, scales_biases })
}

/// A matrix of packed integers with scales and zero points.
fn zeroed(
    path: &Path,
    name: &str,
    [(file, weight), (scales_file, scales), (zeros_file, zeros)]: [(FileId, RawTensor); 3],
    schemes: &Schemes<'_>,
) -> Result<Tensor, FormatError> {
    let found = match weight.dtype {
        RawType::Whole(Integer::I32) => {
            scaled::integers(&weight, &scales, Some(&zeros), &schemes.published())
        }
        other => {
            let found = format!("{} of values of {}", names::ZERO_POINT, other.name());
            Err(Refusal::Unsupported(found))
        }
    };
    let (shape, encoding) = found.map_err(|refusal| refusal.of(path, name))?;
    let (element, weight) = (encoding.into(), extent(file, &weight));
    let scales_biases = Some((extent(scales_file, &scales), extent(zeros_file, &zeros)));
    Ok(Tensor { shape, element, weight, scales_biases })
}

/// A matrix of packed integers with scales and biases.
fn affine(
    config: &Path,
    path: &Path,
    name: &str,
    [(file, weight), (scales_file, scales), (biases_file, biases)]: [(FileId, RawTensor); 3],
    schemes: &Schemes<'_>,
) -> Result<Tensor, FormatError> {
    let invalid = |found: String| FormatError::invalid(path, name, found, DOWNLOAD_AGAIN);
    if weight.dtype != RawType::U32 {
        return Err(invalid(format!("has scales but is {}, not U32", weight.dtype.name())));
    }
    let Some(scale) = scales.dtype.float() else {
        return Err(invalid(format!("scales are {}", scales.dtype.name())));
    };
    if (biases.dtype, &biases.shape) != (scales.dtype, &scales.shape) {
        return Err(invalid("biases have another shape or type than scales".to_owned()));
    }
    let (outer, words, groups) = match (&weight.shape[..], &scales.shape[..]) {
        ([outer @ .., words], [scale_outer @ .., groups])
            if outer == scale_outer && !outer.is_empty() =>
        {
            (outer, *words, *groups)
        }
        _ => {
            let found = format!("weight {:?} and scales {:?}", weight.shape, scales.shape);
            return Err(invalid(format!("{found} do not belong together")));
        }
    };
    let scheme = match schemes {
        Schemes::Config(quantization) => quantization.of(name).ok_or_else(|| {
            let found = "has scales but config.json does not say that it is quantised";
            FormatError::invalid(config, format!("quantization: {name}"), found, DOWNLOAD_AGAIN)
        })?,
        Schemes::Group(group) => from_shapes(words, groups, *group)
            .ok_or_else(|| invalid(format!("{words} words for {groups} groups of {group}")))?,
    };
    let Scheme { bits, group, floats } = scheme;
    if floats {
        return Err(invalid("has biases, but config.json says that its mode is mxfp4".to_owned()));
    }
    let columns = groups.checked_mul(group.into()).filter(|&columns| {
        columns.checked_mul(bits.into()).is_some_and(|total| total / 32 == words && total % 32 == 0)
    });
    let Some(columns) = columns else {
        return Err(invalid(format!(
            "weight {:?} and scales {:?} contradict {bits} bits in groups of {group} as config.json has it",
            weight.shape, scales.shape
        )));
    };
    let mut shape = outer.to_vec();
    shape.push(columns);
    Ok(Tensor {
        shape,
        element: Encoding::Affine { bits, group, scale }.into(),
        weight: extent(file, &weight),
        scales_biases: Some((extent(scales_file, &scales), extent(biases_file, &biases))),
    })
}

fn float(
    path: &Path,
    name: &str,
    file: FileId,
    raw: RawTensor,
    schemes: &Schemes<'_>,
) -> Result<Tensor, FormatError> {
    let element = match raw.dtype {
        RawType::Encoded(encoding) => Some(Element::Value(encoding)),
        // Whole numbers that no table asks for are values of a type that is not read.
        RawType::Whole(integer)
            if name.ends_with(deepseek_v4::TABLE)
                || rows::NUMBERS.iter().any(|numbers| name.ends_with(numbers)) =>
        {
            Some(Element::Whole(integer))
        }
        dtype => dtype.float().map(|float| Encoding::Float(float).into()),
    };
    let Some(element) = element else {
        return Err(match raw.dtype {
            RawType::Float8(dtype) => FormatError::unsupported(
                path,
                name,
                format!("fp8 ({dtype})"),
                "use the bf16 release or an MLX affine quantisation",
            ),
            RawType::U32 => {
                FormatError::invalid(path, name, "U32 without scales and biases", DOWNLOAD_AGAIN)
            }
            other => FormatError::unsupported(
                path,
                name,
                format!("type {}", other.name()),
                "weights are F32, F16, BF16 or MLX affine",
            ),
        });
    };
    if let Schemes::Config(quantization) = schemes
        && quantization.overrides_to_quantised(name)
    {
        let found = format!("is {} but config.json lists it as quantised", raw.dtype.name());
        return Err(FormatError::invalid(path, name, found, DOWNLOAD_AGAIN));
    }
    let weight = Extent { file, offset: raw.offset, length: raw.length };
    Ok(Tensor { shape: raw.shape, element, weight, scales_biases: None })
}

fn from_shapes(words: usize, groups: usize, group: u16) -> Option<Scheme> {
    let columns = groups.checked_mul(group.into())?;
    let bits = words.checked_mul(32)?.checked_div(columns)?;
    let bits = u8::try_from(bits).ok().filter(|bits| matches!(bits, 2 | 3 | 4 | 5 | 6 | 8))?;
    Some(Scheme { bits, group, floats: false })
}
