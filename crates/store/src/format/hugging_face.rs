//! Folders of safetensors files with a config.json: as Hugging Face and mlx-lm write them.

use std::fs;
use std::path::Path;

use kernels::format::Encoding;

use super::assemble::{self, Assembled, Schemes};
use super::config::Dimensions;
use super::error::{self, FormatError};
use super::place::{CONFIG, Place};
use super::quantization::Quantization;
use super::shards::{self, Shards};
use super::sidecar::Sidecar;
use super::{
    Checkpoint, CheckpointFile, Configuration, Family, SourceKind, Tensor, deepseek_v4, files,
    json, names, rows,
};
use crate::io::platform::FileExt;

/// How far the mean of a norm's weights may be from zero or one.
const NEAR: f64 = 0.35;

/// True for a folder with a configuration, unless its weights are GGUF files: their publishers often put the
/// original's configuration beside them.
pub(super) fn probe(place: &Place<'_>) -> Result<bool, FormatError> {
    if !place.has(CONFIG)? {
        return Ok(false);
    }
    if files::find(place.folder, shards::INDEX)?.is_some() {
        return Ok(true);
    }
    let failed = |error| FormatError::io(place.folder, "list the folder", error);
    let mut foreign = false;
    for entry in fs::read_dir(place.folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(".safetensors") {
            return Ok(true);
        }
        foreign |= name.ends_with(".gguf");
    }
    Ok(!foreign)
}

/// Opens a folder of this layout.
pub(super) fn open(folder: &Path) -> Result<Checkpoint, FormatError> {
    let config_path = folder.join(CONFIG);
    let config = json::read(&config_path, json::CONFIG_BYTES_MAX)?;
    let config = Configuration::new(&config_path, config)?;
    let dimensions = Dimensions::read(&config)?;
    let quantization = Quantization::read(&config, folder)?;
    let mut shards = Shards::read(folder)?;
    if config.supported_family()? == Family::DeepseekV4 {
        for (_, tensor) in &mut shards.tensors {
            tensor.name = deepseek_v4::renamed(&tensor.name).into_owned();
        }
    }
    // GPTQ and AWQ call their scales so as well.
    let says_scales = quantization.input_major().is_none();
    let from_mlx =
        |name: &str| name.contains(".switch_mlp.") || says_scales && name.ends_with(".scales");
    let is_mlx = quantization.is_present()
        || shards.written_by_mlx
        || shards.tensors.iter().any(|(_, tensor)| from_mlx(&tensor.name));
    let schemes = Schemes::Config(&quantization);
    let Shards { files, tensors, .. } = shards;
    let found = assemble::assemble(&config_path, &files, tensors, dimensions, &schemes)?;
    refuse_routers_without_experts(&config_path, &found)?;
    // The axis order of the convolution kernels is the only reliable sign of a converted checkpoint;
    // the presence of other tensors has misled several readers.
    let converted = found.convolutions_converted.unwrap_or(is_mlx);
    let family = config.supported_family()?;
    let zero_centred = match rows::norm_that_tells(&found.tensors).filter(|_| is_mlx) {
        Some((name, norm)) => norms_around_zero(&files, name, norm)?,
        None => family.has_zero_centred_norms() && !converted,
    };
    let sidecar = Sidecar::read(folder, &config)?;
    Ok(Checkpoint {
        kind: if is_mlx { SourceKind::Mlx } else { SourceKind::HuggingFace },
        root: folder.to_owned(),
        files,
        norms_are_zero_centred: zero_centred,
        config,
        generation_config: sidecar.generation_config,
        tokenizer: sidecar.tokenizer,
        tokenizer_config: sidecar.tokenizer_config,
        chat_template: sidecar.chat_template,
        tensors: found.tensors,
        experts: found.experts,
        row_tables: found.row_tables,
        head: found.head,
        input_majors: found.input_majors,
        skipped: found.skipped,
        unused: found.unused,
        pack: None,
    })
}

/// Whether the values of a norm lie around zero, so that one is to be added, or around one: in MLX files of this family
/// nothing else says it.
fn norms_around_zero(
    files: &[CheckpointFile],
    name: &str,
    norm: &Tensor,
) -> Result<bool, FormatError> {
    let path = &files[norm.weight.file.0 as usize].path;
    let Some(Encoding::Float(float)) = norm.element.encoding() else {
        let found = format!("a norm as {}", norm.element.name());
        return Err(FormatError::invalid(path, name, found, error::DOWNLOAD_AGAIN));
    };
    // Shapes were checked against the file's size.
    let mut bytes = vec![0; norm.weight.length as usize];
    let read = files::open_regular(path)?.file.read_exact_at(&mut bytes, norm.weight.offset);
    read.map_err(|error| FormatError::io(path, "read", error))?;
    let count = bytes.len() / float.bytes();
    let sum: f64 = (0..count).map(|index| f64::from(float.decode(&bytes, index))).sum();
    let mean = sum / count as f64;
    match mean {
        mean if mean.abs() < NEAR => Ok(true),
        mean if (mean - 1.0).abs() < NEAR => Ok(false),
        mean => {
            let found = format!("norms with a mean of {mean:.2}, neither around zero nor one");
            Err(FormatError::unsupported(path, name, found, "use the bf16 release"))
        }
    }
}

/// A layer with a router is no dense layer: without experts its file is missing or its names are unknown.
fn refuse_routers_without_experts(config: &Path, found: &Assembled) -> Result<(), FormatError> {
    for (layer, experts) in found.experts.iter().enumerate() {
        let router = ["mlp.gate", names::ROUTER]
            .iter()
            .any(|name| found.tensors.contains_key(&format!("layers.{layer}.{name}")));
        if experts.is_none() && router {
            let (field, found) = (format!("layers.{layer}.mlp.experts"), "missing beside a router");
            return Err(FormatError::invalid(config, field, found, error::DOWNLOAD_AGAIN));
        }
    }
    Ok(())
}
