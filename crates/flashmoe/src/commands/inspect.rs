//! `flashmoe inspect`: what a model is, from its headers alone.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use engine::backend::cpu::Requirements;
use engine::model::Model;
use engine::model::config::{AttentionConfig, Mixer, ModelConfig, Sees};
use engine::model::index::IndexConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use kernels::KvType;
use serde_json::json;
use store::LayerId;
use store::format::{Checkpoint, Head, Projection, RowTable, SourceKind};
use text::dialect;

use super::program;
use crate::arguments::{ByteSize, InspectArguments};
use crate::failure::Failure;
use crate::requantisation;

pub(crate) fn inspect(arguments: &InspectArguments, out: &mut dyn Write) -> Result<()> {
    let model = &arguments.path.model;
    let checkpoint = crate::models::open_to_pack(model)?;
    let blame = || model.display().to_string();
    let config = ModelConfig::read(&checkpoint.config).map_err(Failure::engine)?;
    // What lacks a tensor cannot run: better said here than after a long copy.
    let mut catalog = Catalog::new(&checkpoint);
    let declared = Model::declare(&config, &mut catalog);
    let declared = declared.map_err(Failure::engine).with_context(blame)?;
    let shapes =
        expert_shapes(&checkpoint, &config).map_err(Failure::engine).with_context(blame)?;
    let mut rows = Vec::new();
    if arguments.program {
        rows = program::rows(&config, &declared.program, &catalog, &shapes);
    }
    if arguments.path.json {
        let mut found = as_json(&checkpoint, &config);
        if arguments.program {
            found["program"] = program::as_json(&rows);
        }
        writeln!(out, "{found}").map_err(Failure::io)?;
        return Ok(());
    }
    let text = match arguments.program {
        true => program::describe(&rows),
        false => describe(&checkpoint, &config),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

/// Lines of a name and what it is.
#[derive(Default)]
struct Fields(Vec<String>);

impl Fields {
    fn add(&mut self, name: &str, value: String) {
        self.0.push(format!("{name:<16} {value}"));
    }
}

fn describe(checkpoint: &Checkpoint, config: &ModelConfig) -> String {
    let mut fields = Fields::default();
    fields.add("family", config.family.name().to_owned());
    fields.add("layout", layout_name(checkpoint.kind).to_owned());
    fields.add("layers", format!("{} ({})", config.layers.len(), kinds(config)));
    fields.add("hidden", config.hidden.to_string());
    fields.add("vocabulary", config.vocabulary.to_string());
    describe_mixers(checkpoint, config, &mut fields);
    describe_experts(checkpoint, config, &mut fields);
    describe_files(checkpoint, config, &mut fields);
    let Fields(mut lines) = fields;
    lines.push(String::new());
    lines.push("layer  mixer       gate       up         down       record".to_owned());
    lines.extend(layer_rows(checkpoint, config));
    if let Some(pack) = &checkpoint.pack {
        lines.extend(requantisation::line(checkpoint));
        lines.extend(requantisation::linked(checkpoint));
        lines.push(requantisation::table(&pack.requantised));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Attention, the delta rule, and what some families have next to them.
fn describe_mixers(checkpoint: &Checkpoint, config: &ModelConfig, fields: &mut Fields) {
    let heads = &config.attention;
    fields.add(
        "attention",
        match &config.latent {
            None => config.attentions().map(heads_of).collect::<Vec<_>>().join("; with a window "),
            Some(latent) => format!(
                "{} query heads of {} and {} rotated, values of {}, from latent rows of {}",
                heads.query_heads, latent.plain_dim, heads.rope.dims, latent.value_dim, latent.rank
            ),
        },
    );
    if let (Some(shape), Some(hyper)) = (&config.compressed, &config.hyper) {
        let index = &shape.index;
        fields.add(
            "compressed rows",
            format!(
                "beside a window of {}, the best {} by {} heads of {}",
                shape.window, index.top, index.heads, index.dim
            ),
        );
        fields.add("streams", format!("{}, mixed in {} passes", hyper.streams, hyper.iterations));
        fields.add("experts by token", format!("in the first {} layers", config.moe.hashed_layers));
    }
    if let Some(gated) = &config.gated {
        fields.add("streams", format!("{}, read by gates of rank {}", gated.streams, gated.rank));
    }
    if let Some(index) = &config.index {
        let (name, what) = chosen(config, index);
        fields.add(name, what);
    }
    for (name, table) in &checkpoint.row_tables {
        let rows = config.ngrams.as_ref().map_or(0, |ngrams| ngrams.rows());
        let lie = match (table.paged, table.pieces()) {
            (true, _) => "in pages of whole rows".to_owned(),
            (false, 1) => "read where they lie".to_owned(),
            (false, pieces) => format!("read where they lie, {pieces} reads each"),
        };
        fields.add(
            "rows of n-grams",
            format!(
                "{} of {} bytes in {name} as {}, {}, {lie}, {rows} for a token",
                table.rows,
                table.row_bytes(),
                table.encoding.name(),
                ByteSize(table.bytes())
            ),
        );
    }
    if let Some(delta) = &config.delta {
        fields.add(
            "delta rule",
            format!(
                "{} key heads of {}, {} value heads of {}, convolution {}",
                delta.key_heads,
                delta.key_dim,
                delta.value_heads,
                delta.value_dim,
                delta.convolution_kernel
            ),
        );
    }
}

/// Which keys a token sees, by the name of what they are.
fn chosen(config: &ModelConfig, index: &IndexConfig) -> (&'static str, String) {
    let IndexConfig { heads, dim, unit, budget, .. } = index;
    if config.latent.is_none() {
        let what =
            format!("the best {budget} of units of {unit} tokens, by {heads} heads of {dim}");
        return ("chosen keys", what);
    }
    let others = config.layers.iter().filter(|layer| layer.sees == Sees::AsBefore).count();
    let of = match others {
        0 => String::new(),
        others => format!(", {others} layers as the one before"),
    };
    let pools = match unit {
        1 => String::new(),
        unit => format!(" of pools of {unit} tokens"),
    };
    ("chosen rows", format!("the best {budget}{pools} by {heads} heads of {dim}{of}"))
}

/// Experts, the context, and what both take.
fn describe_experts(checkpoint: &Checkpoint, config: &ModelConfig, fields: &mut Fields) {
    let moe = &config.moe;
    let shared = match moe.shared_intermediate {
        Some(width) => format!("shared expert {width}"),
        None => "no shared expert".to_owned(),
    };
    fields.add(
        "experts",
        format!(
            "{} per layer, top {}, width {}, {shared}",
            moe.experts, moe.top_k, moe.intermediate
        ),
    );
    fields.add("context", format!("{} positions", config.max_positions));
    fields.add("key-value cache", format!("per token {}", key_value_bytes(config)));
    fields.add("trunk", ByteSize(checkpoint.trunk_bytes()).to_string());
    fields.add("experts, bytes", ByteSize(checkpoint.expert_bytes()).to_string());
    let records =
        (0..config.layers.len()).filter_map(|i| checkpoint.record_bytes(LayerId(i as u16)));
    let per_token: u64 = records.map(|bytes| bytes * moe.top_k as u64).sum();
    fields.add("read per token", format!("{} when no expert is in memory", ByteSize(per_token)));
}

/// What else the files hold.
fn describe_files(checkpoint: &Checkpoint, config: &ModelConfig, fields: &mut Fields) {
    fields.add(
        "tokenizer",
        checkpoint.tokenizer.as_ref().map_or("none".to_owned(), |t| t.path().display().to_string()),
    );
    fields.add(
        "chat template",
        checkpoint
            .chat_template
            .as_ref()
            .map_or("none".to_owned(), |t| format!("{} bytes", t.len())),
    );
    let whence = match &checkpoint.chat_template {
        Some(_) => "taught by the chat template",
        None => "without a chat template",
    };
    fields.add("dialect", format!("{}, {whence}", dialect(checkpoint).name()));
    let sums = match &checkpoint.pack {
        Some(_) => {
            "of the trunk (compared at load), of each expert (--check-reads) and of copied files"
        }
        None => "none in this layout: damage in weights goes unnoticed; `flashmoe pack` adds them",
    };
    fields.add("checksums", sums.to_owned());
    fields.add("head", head(checkpoint, config));
    if !checkpoint.skipped.is_empty() {
        let first = &checkpoint.skipped[0];
        fields.add("not used", format!("{} tensors, such as {first}", checkpoint.skipped.len()));
    }
}

/// The layers' mixers, and encodings and records of their experts; equal layers are one row.
fn layer_rows(checkpoint: &Checkpoint, config: &ModelConfig) -> Vec<String> {
    let mut rows: Vec<(usize, usize, String)> = Vec::new();
    for (index, layer) in config.layers.iter().enumerate() {
        let mixer = match layer.mixer {
            Mixer::Attention => "attention",
            Mixer::Latent => "latent",
            Mixer::DeltaNet => "delta rule",
            Mixer::Compressed(None) => "window",
            Mixer::Compressed(Some(_)) => "compressed",
        };
        let row = match checkpoint.experts.get(index).and_then(Option::as_ref) {
            None => format!("{mixer:<11} without experts"),
            Some(experts) => {
                let [gate, up, down] = [Projection::Gate, Projection::Up, Projection::Down]
                    .map(|projection| experts.shapes[projection as usize].encoding.label());
                let record = checkpoint.record_bytes(LayerId(index as u16)).unwrap_or(0);
                format!("{mixer:<11} {gate:<10} {up:<10} {down:<10} {record} B")
            }
        };
        match rows.last_mut() {
            Some((_, last, same)) if *same == row => *last = index,
            _ => rows.push((index, index, row)),
        }
    }
    let ranges = rows.into_iter().map(|(first, last, row)| {
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        format!("{range:<6} {row}")
    });
    ranges.collect()
}

/// What predicts further tokens, and what it takes.
fn head(checkpoint: &Checkpoint, config: &ModelConfig) -> String {
    match &checkpoint.head {
        Head::Absent => "none: drafts come from the text alone (--draft ngram)".to_owned(),
        Head::Unusable(why) => format!("none that is whole: {why}"),
        Head::Apart(head) => {
            let layer = ByteSize(head.trunk_bytes());
            let experts = ByteSize(head.expert_bytes());
            let used = match config.clone().with_head() {
                Ok(_) => "used by --draft head and auto",
                Err(_) => "not computed for this family",
            };
            format!("one layer of {layer} and experts of {experts}, {used}")
        }
        Head::Added => "one layer".to_owned(),
    }
}

fn as_json(checkpoint: &Checkpoint, config: &ModelConfig) -> serde_json::Value {
    let attention = config.attention_layers();
    let moe = &config.moe;
    let layers: Vec<_> = (0..config.layers.len())
        .map(|index| {
            let experts = checkpoint.experts.get(index).and_then(Option::as_ref);
            let encodings = experts.map(|it| it.shapes.map(|shape| shape.encoding.label()));
            let record = checkpoint.record_bytes(LayerId(index as u16));
            json!({"encodings": encodings, "record_bytes": record})
        })
        .collect();
    json!({
        "family": config.family.name(),
        "layout": layout_name(checkpoint.kind),
        "path": checkpoint.root,
        "attention_layers": attention,
        "delta_rule_layers": config.count(Mixer::DeltaNet),
        "dense_layers": config.layers.len() - config.mixtures(),
        "hidden": config.hidden,
        "vocabulary": config.vocabulary,
        "context": config.max_positions,
        "experts": moe.experts,
        "experts_per_token": moe.top_k,
        "expert_width": moe.intermediate,
        "trunk_bytes": checkpoint.trunk_bytes(),
        "expert_bytes": checkpoint.expert_bytes(),
        "row_table_bytes": checkpoint.row_tables.values().map(RowTable::bytes).sum::<u64>(),
        "tokenizer": checkpoint.tokenizer.as_ref().map(|source| source.path()),
        "chat_template": checkpoint.chat_template.is_some(),
        "dialect": dialect(checkpoint).name(),
        "checksums": checkpoint.pack.is_some(),
        "head_bytes": match &checkpoint.head {
            Head::Apart(head) => Some(head.trunk_bytes() + head.expert_bytes()),
            _ => None,
        },
        "layers": layers,
    })
}

/// How many layers there are of each kind.
fn kinds(config: &ModelConfig) -> String {
    let mut compressed = BTreeMap::<usize, usize>::new();
    for layer in &config.layers {
        if let Mixer::Compressed(compression) = layer.mixer {
            *compressed.entry(compression.map_or(0, |it| it.ratio)).or_default() += 1;
        }
    }
    if compressed.is_empty() {
        let (attention, delta) = (config.attention_layers(), config.count(Mixer::DeltaNet));
        let dense = match config.layers.len() - config.mixtures() {
            0 => String::new(),
            count => format!(", {count} without experts"),
        };
        return format!("{attention} attention, {delta} delta rule{dense}");
    }
    let kinds = compressed.iter().map(|(ratio, count)| match ratio {
        0 => format!("{count} window"),
        ratio => format!("{count} compressed {ratio} to 1"),
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Heads of a shape of attention.
fn heads_of(heads: &AttentionConfig) -> String {
    // Pairs beyond the turning ones stay.
    let rotated = heads.rope.dims.min(2 * heads.rope.turning);
    format!(
        "{} query heads, {} key-value heads of {}, {rotated} rotated",
        heads.query_heads, heads.key_value_heads, heads.head_dim
    )
}

/// Bytes that the caches of all layers keep of one token, by type.
fn key_value_bytes(config: &ModelConfig) -> String {
    let (rows, width) = (config.cache_rows(), config.attention.head_dim);
    let bytes = |kind: KvType| {
        let compressed = Requirements::compressed_bytes_per_token(config, kind);
        ByteSize((rows * kind.bytes_of_head(width)) as u64 + compressed)
    };
    let kinds = KvType::ALL.into_iter().chain(config.trained_kv_type());
    let each: Vec<_> = kinds.map(|kind| format!("{} in {kind}", bytes(kind))).collect();
    each.join(", ")
}

fn layout_name(kind: SourceKind) -> &'static str {
    match kind {
        SourceKind::Mlx => "MLX safetensors",
        SourceKind::HuggingFace => "Hugging Face safetensors",
        SourceKind::Native => "native pack",
        SourceKind::Ancestor => "model_weights.bin with packed_experts",
        SourceKind::Gguf => "GGUF",
    }
}
