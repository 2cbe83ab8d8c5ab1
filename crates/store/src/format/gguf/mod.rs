//! GGUF files, read in place.
//!
//! The header's keys become a configuration (`architecture.rs`), its tensors get canonical names (`names.rs`), and
//! both go through what every layout goes through. What the converter changed stays as it is stored: norms hold
//! `1 + w`, `ssm_a` holds `-exp(A_log)` under a name of its own, and value heads of the delta rule lie in the order
//! that the configuration calls tiled. Tokenizer and template come from the keys (`vocabulary.rs`).

mod architecture;
mod header;
mod metadata;
mod names;
mod rules;
mod split;
mod types;
mod vocabulary;
mod window;

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::assemble::{self, Schemes};
use super::config::{Dimensions, keys};
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::place::Place;
use super::quantization::Quantization;
use super::safetensors::{self, RawType};
use super::{Checkpoint, FileId, Integer, SourceKind, files};
use architecture::{Described, Found, gemma};
use header::RawTensor;
use names::{Layers, Meaning};
use split::{EXTENSION, PartName, Parts};

pub use rules::word_expressions;
pub use vocabulary::Vocabulary;

/// Names of files that hold a vision tower beside a model.
const VISION: &str = "mmproj";
/// Files of a folder that are looked at.
const FILES_MAX: usize = 4096;
/// Names that a message lists.
const NAMES_LISTED: usize = 4;

/// True for a GGUF file, by name or first bytes, and for a folder that holds some.
pub(super) fn probe(place: &Place<'_>) -> Result<bool, FormatError> {
    match place.alone() {
        Some(file) => {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            Ok(name.ends_with(EXTENSION) || has_magic(file)?)
        }
        None => Ok(!models(place.folder)?.is_empty()),
    }
}

/// A file may have lost its name, as in caches that call files by their digests.
fn has_magic(path: &Path) -> Result<bool, FormatError> {
    let mut bytes = Vec::new();
    let read = files::open_regular(path)?.file.take(4).read_to_end(&mut bytes);
    read.map_err(|error| FormatError::io(path, "read", error))?;
    Ok(bytes == header::MAGIC)
}

/// The models of a folder: files that are whole, and the first parts of sets.
fn models(folder: &Path) -> Result<Vec<String>, FormatError> {
    let failed = |error| FormatError::io(folder, "list the folder", error);
    let mut names = Vec::new();
    let mut sets = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.ends_with(EXTENSION)) else { continue };
        if name.contains(VISION) {
            continue;
        }
        if let Some(part) = PartName::of(name) {
            // One part stands for its set, the first that is there.
            let set = part.set();
            if sets.contains(&set) {
                continue;
            }
            sets.push(set);
        }
        names.push(name.to_owned());
        if names.len() > FILES_MAX {
            let (found, limit) = (names.len() as u64, FILES_MAX as u64);
            return Err(FormatError::limit(folder, "GGUF files", found, limit));
        }
    }
    names.sort();
    Ok(names)
}

/// The file that a place means.
fn chosen(place: &Place<'_>) -> Result<PathBuf, FormatError> {
    if let Some(file) = place.alone() {
        return Ok(file.to_owned());
    }
    let names = models(place.folder)?;
    let [name] = &names[..] else {
        let mut listed = names[..names.len().min(NAMES_LISTED)].join(", ");
        if names.len() > NAMES_LISTED {
            listed.push_str(", ...");
        }
        let reason = format!("{} models here ({listed}); name one of the files", names.len());
        return Err(FormatError::NotACheckpoint { path: place.folder.to_owned(), reason });
    };
    Ok(files::find(place.folder, name)?.unwrap_or_else(|| place.folder.join(name)))
}

/// Reads the header of a GGUF file of `length` bytes from `reader`, and no more than a buffer beyond it: for files that
/// are not here yet. `path` is what errors call the file.
///
/// # Errors
/// What `reader` reports, and a header that breaks a rule.
pub fn read_gguf_header(path: &Path, reader: impl Read, length: u64) -> Result<(), FormatError> {
    header::read(path, reader, length).map(|_| ())
}

/// Opens the file of `place`, or the only model of its folder.
pub(super) fn open(place: &Place<'_>) -> Result<Checkpoint, FormatError> {
    let path = chosen(place)?;
    let Parts { files, metadata, tensors } = Parts::read(&path)?;
    let rows = tensors.iter().find(|(_, tensor)| tensor.name == "token_embd.weight");
    let rows = rows.and_then(|(_, tensor)| tensor.shape.first().copied());
    let has = |name: &str| tensors.iter().any(|(_, tensor)| tensor.name == name);
    let attends = |(_, tensor): &&(FileId, RawTensor)| tensor.name.ends_with(".attn_k.weight");
    let valued = |(_, tensor): &&(FileId, RawTensor)| tensor.name.ends_with(".attn_v.weight");
    let count = |wanted: &dyn Fn(&&(FileId, RawTensor)) -> bool| {
        tensors.iter().filter(|tensor| wanted(tensor)).count()
    };
    let factors = tensors.iter().find(|(_, tensor)| tensor.name == gemma::FACTORS);
    let turning = match factors.filter(|_| architecture::is_gemma(&metadata)) {
        None => None,
        Some((file, tensor)) => Some(gemma::turning(&files[file.0 as usize].path, tensor)?),
    };
    let indexer = |name: &str| {
        let block = name.strip_prefix("blk.")?.strip_suffix(".indexer.attn_k.weight")?;
        block.parse::<usize>().ok()
    };
    let indexed: Vec<usize> =
        tensors.iter().filter_map(|(_, tensor)| indexer(&tensor.name)).collect();
    let table = tensors.iter().find(|(_, tensor)| tensor.name == names::NGRAM_ROWS);
    let found = Found {
        rows,
        ngram_rows: table.and_then(|(_, tensor)| tensor.shape.first().copied()),
        own_head: has("output.weight"),
        head_norms: has("blk.0.attn_q_norm.weight"),
        biases: has("blk.0.attn_q.bias"),
        full_values: count(&attends) == count(&valued),
        turning,
        indexed: &indexed,
    };
    let described = architecture::describe(&metadata, found)?;
    let file = |id: FileId| files[id.0 as usize].path.as_path();
    let (raw, mut skipped) = translate(&described, tensors, &file)?;
    let dimensions = Dimensions::read(&described.config)?;
    let none = Quantization::default();
    let schemes = Schemes::Config(&none);
    let found = assemble::assemble(metadata.path(), &files, raw, dimensions, &schemes)?;
    skipped.extend(found.skipped);
    let vocabulary = Vocabulary::read(metadata, described.config.get(&keys::VOCAB_SIZE)?)?;
    let generation_config = vocabulary.generation_config();
    let tokenizer_config = vocabulary.tokenizer_config();
    let chat_template = vocabulary.chat_template()?;
    Ok(Checkpoint {
        kind: SourceKind::Gguf,
        root: place.folder.to_owned(),
        files,
        config: described.config,
        generation_config,
        tokenizer: Some(super::TokenizerSource::Gguf(Box::new(vocabulary))),
        tokenizer_config: Some(tokenizer_config),
        chat_template,
        tensors: found.tensors,
        experts: found.experts,
        norms_are_zero_centred: false,
        row_tables: found.row_tables,
        head: found.head,
        skipped,
        unused: found.unused,
        input_majors: Default::default(),
        pack: None,
    })
}

type Translated = (Vec<(FileId, safetensors::RawTensor)>, Vec<String>);

/// Gives every tensor its canonical name and form; the names of those that are not used come apart.
fn translate<'a>(
    described: &Described,
    tensors: Vec<(FileId, RawTensor)>,
    path: &impl Fn(FileId) -> &'a Path,
) -> Result<Translated, FormatError> {
    let layers = Layers {
        trunk: described.trunk,
        further: described.further,
        heads: described.heads,
        second_norm: described.known.second_norm,
        own: described.known.own,
        linear: &described.linear,
        ngrams: described.ngrams,
    };
    let (mut raw, mut skipped) = (Vec::with_capacity(tensors.len()), Vec::new());
    let drafts: HashSet<usize> =
        tensors.iter().filter_map(|(_, tensor)| names::draft(&tensor.name)).collect();
    for (file, tensor) in &tensors {
        let beyond = layers.beyond(&tensor.name);
        if let Some(layer) = beyond.filter(|layer| !drafts.contains(layer)) {
            let found =
                format!("belongs to a block beyond the trunk without tensors blk.{layer}.nextn");
            return Err(FormatError::invalid(path(*file), &tensor.name, found, DOWNLOAD_AGAIN));
        }
    }
    for (file, tensor) in tensors {
        let beyond = layers.beyond(&tensor.name).is_some();
        match layers.meaning(&tensor.name) {
            Meaning::Skipped => skipped.push(tensor.name),
            // A head in a type that is not read is none.
            Meaning::Canonical(_) if beyond && tensor.ggml.encoding().is_none() => {
                skipped.push(tensor.name);
            }
            // Its factors were read with the keys.
            Meaning::Unknown if described.factors && tensor.name == gemma::FACTORS => {
                skipped.push(tensor.name);
            }
            Meaning::Canonical(name) => {
                raw.push((file, canonical(path(file), name, tensor)?));
            }
            Meaning::FusedAttention { layer } => {
                let parts = fused(path(file), layer, &described.fused_rows, tensor)?;
                raw.extend(parts.map(|part| (file, part)));
            }
            Meaning::LoneExpert => {
                let remedy =
                    "convert the model again: a current converter stacks the experts of a layer";
                let found = "a matrix of one expert";
                return Err(FormatError::unsupported(path(file), &tensor.name, found, remedy));
            }
            Meaning::Unknown => {
                let remedy =
                    "leaving a tensor out would change the answers; convert the model again";
                let found = "a tensor that this architecture is not known to have";
                return Err(FormatError::unsupported(path(file), &tensor.name, found, remedy));
            }
        }
    }
    Ok((raw, skipped))
}

/// A tensor under its canonical name, in the form that other layouts have.
fn canonical(
    path: &Path,
    name: String,
    tensor: RawTensor,
) -> Result<safetensors::RawTensor, FormatError> {
    let dtype = match tensor.ggml.encoding() {
        Some(encoding) => Some(RawType::Encoded(encoding)),
        // A table of experts by token.
        None => match tensor.ggml.name {
            "I32" => Some(RawType::Whole(Integer::I32)),
            "I64" => Some(RawType::Whole(Integer::I64)),
            _ => None,
        },
    };
    let Some(dtype) = dtype else {
        let remedy = "take the model in another quantisation";
        let found = format!("type {}", tensor.ggml.name);
        return Err(FormatError::unsupported(path, &tensor.name, found, remedy));
    };
    let mut shape = tensor.shape;
    if name.ends_with(".conv1d") && shape.len() == 2 {
        shape.insert(1, 1);
    }
    if name.ends_with(".shared_expert_gate") && shape.len() == 1 {
        shape.insert(0, 1);
    }
    let RawTensor { offset, length, .. } = tensor;
    Ok(safetensors::RawTensor { name, dtype, shape, offset, length })
}

/// Query, key and value out of one matrix: runs of whole rows.
fn fused(
    path: &Path,
    layer: usize,
    rows: &[usize; 3],
    tensor: RawTensor,
) -> Result<[safetensors::RawTensor; 3], FormatError> {
    let all: usize = rows.iter().sum();
    let &[found, columns] = &tensor.shape[..] else {
        let found = format!("shape {:?}", tensor.shape);
        return Err(FormatError::invalid(path, &tensor.name, found, DOWNLOAD_AGAIN));
    };
    if found != all {
        let found = format!("{found} rows, but query, key and value have {all}");
        return Err(FormatError::invalid(path, &tensor.name, found, DOWNLOAD_AGAIN));
    }
    let row = tensor.length / all as u64;
    let mut first = 0;
    let mut take = |part: usize| {
        let (name, rows) = (["q_proj", "k_proj", "v_proj"][part], rows[part]);
        let offset = tensor.offset + first * row;
        first += rows as u64;
        let cut = RawTensor {
            name: tensor.name.clone(),
            ggml: tensor.ggml,
            shape: vec![rows, columns],
            offset,
            length: rows as u64 * row,
        };
        canonical(path, format!("layers.{layer}.self_attn.{name}"), cut)
    };
    Ok([take(0)?, take(1)?, take(2)?])
}
