//! A model made ready for a server: its plan, what clients are told of it, its worker.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use engine::routing::Heat;
use server::Log;
use server::work::{
    DiskOptions, EngineWorker, Loading, ModelCard, SharedOptions, SlotOptions, WorkerOptions,
};
use store::format::{Checkpoint, SourceKind};

use crate::arguments::{ModelArguments, ServeArguments};
use crate::examples::Examples;
use crate::failure::Failure;
use crate::plan::device::DevicePlan;
use crate::plan::language::LanguageBeside;
use crate::plan::load::Tell;
use crate::plan::{Plan, Seats};
use crate::progress::say;
use crate::sampling::sampling_options;

/// Panics of the engine within a minute that a worker does not survive.
const PANICS_MAX: usize = 3;
/// Reading so many bytes takes a while, and is said.
const TOLD_BYTES: u64 = 1 << 30;

/// What all models of a server have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) arguments: Arc<ServeArguments>,
    /// System prompt of conversations that bring none.
    pub(super) system: Option<String>,
    /// API keys; none where everybody is served.
    pub(super) keys: Vec<String>,
    pub(super) log: Log,
}

/// A model of a server.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) common: Common,
    pub(super) model: ModelArguments,
    /// The name that clients see; `None` for that of its folder.
    pub(super) name: Option<String>,
}

/// A model with its plan.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) card: ModelCard,
}

impl Served {
    /// Works out what it takes; nothing is loaded.
    pub(super) fn planned(&self) -> Result<Planned> {
        let arguments = &self.common.arguments;
        let seats = Seats {
            sequences: arguments.sequences.map(usize::from),
            snapshots: arguments.snapshots.map(usize::from),
            waiting: Some(arguments.queue),
        };
        let plan = Plan::resolve(&self.model, seats)?;
        let card = self.card(&plan)?;
        Ok(Planned { plan, card })
    }

    /// Loads it; `loading` learns how far it is.
    pub(super) fn worker(
        &self,
        planned: Planned,
        language: LanguageBeside,
        loading: &Arc<Loading>,
    ) -> Result<Arc<EngineWorker>> {
        let Planned { plan, card } = planned;
        let Common { arguments, system, log, .. } = &self.common;
        // A GPU routes by itself and does not report its choices.
        let heat = plan.devices.is_empty().then(|| {
            let (layers, experts) = (plan.config.layers.len(), plan.config.moe.experts);
            Heat::new(layers, experts)
        });
        let routing = match &heat {
            Some(heat) => plan.routing().counted_by(heat.clone()),
            None => plan.routing(),
        };
        let told = Arc::clone(loading);
        let tell: Tell = Arc::new(move |share| told.advance(share));
        let loaded = plan.load_telling(routing, &tell)?;
        let language = language.joined()?;
        let name = card.id.clone();
        let options = WorkerOptions {
            model: card,
            context: plan.backend.context,
            sequences: plan.backend.sequences,
            queue: arguments.queue,
            system: system.clone(),
            on_full: arguments.on_full,
            disk: arguments.cache_disk.clone().map(|folder| DiskOptions {
                folder,
                fingerprint: fingerprint(&plan),
                model: name.clone(),
                bytes_max: arguments.cache_disk_size.0,
                bytes_per_second: arguments.cache_disk_rate.0,
                bytes_per_day: arguments.cache_disk_daily.0,
                bytes_free: arguments.cache_disk_reserve.map(|size| size.0),
            }),
            shared: shared_options(arguments, &plan, &name)?,
            slots: arguments
                .slot_save_path
                .clone()
                .map(|folder| SlotOptions { folder, fingerprint: fingerprint(&plan) }),
            panics: PANICS_MAX,
            drafting: plan.arguments.draft.drafting(),
            log: log.clone(),
        };
        let worker = EngineWorker::start(loaded.engine, Arc::new(language), options);
        let worker = worker.map_err(Failure::io)?;
        Ok(Arc::new(match heat {
            Some(heat) => worker.with_heat(heat),
            None => worker,
        }))
    }

    /// What clients are told about the model.
    fn card(&self, plan: &Plan) -> Result<ModelCard> {
        let checkpoint = &plan.checkpoint;
        let sampling = sampling_options(&self.common.arguments.sampling, checkpoint)?;
        let model: &PathBuf = &self.model.model;
        let folder = model.canonicalize().unwrap_or_else(|_| model.clone());
        let folder = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let folder = folder.map(|name| name.strip_suffix(".gguf").unwrap_or(&name).to_owned());
        let bytes = match checkpoint.kind {
            // Other files of the folder are other models.
            SourceKind::Gguf => checkpoint.file_bytes(),
            _ => {
                let files = std::fs::read_dir(&checkpoint.root).into_iter().flatten().flatten();
                files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
            }
        };
        let Examples { about, examples } = Examples::of(checkpoint)?;
        Ok(ModelCard {
            id: self.name.clone().or(folder).unwrap_or_else(|| "model".to_owned()),
            family: plan.config.family.model_type().to_owned(),
            context: plan.backend.context,
            vocabulary: plan.config.vocabulary,
            layers: plan.config.trunk_layers(),
            experts: plan.config.moe.experts,
            experts_per_token: plan.backend.top_k,
            bytes,
            parameters: parameters(checkpoint),
            encoding: encoding(checkpoint),
            chat_template: checkpoint.chat_template.clone().unwrap_or_default(),
            bos_token: special_token(checkpoint, "bos_token"),
            eos_token: special_token(checkpoint, "eos_token"),
            memory: memory(plan),
            sampling,
            approximations: plan.approximations(),
            about,
            examples,
        })
    }
}

/// The folder that servers share. The model's contents are read for it where no pack or note has their sums.
fn shared_options(
    arguments: &ServeArguments,
    plan: &Plan,
    name: &str,
) -> Result<Option<SharedOptions>> {
    let Some(folder) = arguments.cache_shared.clone() else { return Ok(None) };
    let note = arguments.cache_disk.as_ref().map(|folder| folder.join("contents"));
    if let Some(folder) = &arguments.cache_disk {
        let made = store::io::platform::create_private_folder(folder);
        made.map_err(Failure::io).with_context(|| folder.display().to_string())?;
    }
    if plan.checkpoint.contents_bytes() > TOLD_BYTES {
        say("--cache-shared: the model's contents are compared by a sum of all its bytes");
    }
    let contents = plan.checkpoint.contents(note.as_deref()).map_err(Failure::io)?;
    Ok(Some(SharedOptions {
        folder,
        fingerprint: numerics(plan, contents),
        model: name.to_owned(),
        bytes_max: arguments.cache_shared_size.0,
        bytes_per_second: arguments.cache_shared_rate.0,
    }))
}

/// What must be equal for a snapshot of another run to be one of this.
fn fingerprint(plan: &Plan) -> u64 {
    // The checkpoint's own fingerprint does not read the weights: their files' times stand for them.
    let files = plan.checkpoint.files.iter();
    let times = files.map(|file| file.path.metadata().and_then(|file| file.modified()).ok());
    let times: Vec<_> = times.collect();
    folded(plan.checkpoint.fingerprint(), &format!("{} {times:?}", arithmetic(plan)))
}

/// The same for a snapshot of another host, of a model with these contents.
fn numerics(plan: &Plan, contents: u64) -> u64 {
    let device = plan.device().map(kind);
    folded(contents, &format!("{} {device:?}", arithmetic(plan)))
}

/// What decides the last bits of what a GPU computes.
fn kind(device: &DevicePlan) -> (&str, (i32, i32)) {
    (&*device.info.name, device.info.capability)
}

/// The cut, where GPUs differ whose last bits do: bits then depend on where each layer is.
fn mixed_cut(plan: &Plan) -> String {
    let kinds: Vec<_> = plan.devices.iter().map(kind).collect();
    if kinds.windows(2).all(|pair| pair[0] == pair[1]) {
        return String::new();
    }
    let cut: Vec<_> = plan.stages.iter().map(|stage| &stage.layers).zip(kinds).collect();
    format!(" {cut:?}")
}

/// What decides the bits of a state, in addition to the model. Processors of all kinds agree.
pub(crate) fn arithmetic(plan: &Plan) -> String {
    let backend = &plan.backend;
    let device = plan.device().map_or("cpu", |_| "gpu");
    // A head keeps rows of its own in pages and states.
    let head = if plan.config.head { " head" } else { "" };
    format!(
        "{:?} {:?} {} {:?} {:?} {device} {}{}{head}",
        backend.kv_type,
        backend.delta_form,
        backend.top_k,
        plan.arguments.arithmetic,
        plan.arguments.routing,
        env!("CARGO_PKG_VERSION"),
        mixed_cut(plan),
    )
}

fn folded(seed: u64, text: &str) -> u64 {
    text.bytes()
        .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Weights, routed experts included.
fn parameters(checkpoint: &Checkpoint) -> u64 {
    let trunk = checkpoint.tensors.values().map(|it| it.shape.iter().product::<usize>() as u64);
    let layers = checkpoint.experts.iter().flatten();
    let experts = layers.map(|layer| {
        let one: usize = layer.shapes.iter().map(|shape| shape.rows * shape.columns).sum();
        (one * layer.experts.len()) as u64
    });
    trunk.chain(experts).sum()
}

/// How routed experts are written, which is most of a model.
fn encoding(checkpoint: &Checkpoint) -> String {
    let first = checkpoint.experts.iter().flatten().next();
    first.map(|layer| layer.shapes[0].encoding.label()).unwrap_or_default()
}

/// The text of a special token by its name in tokenizer_config.json.
fn special_token(checkpoint: &Checkpoint, name: &str) -> String {
    let token = checkpoint.tokenizer_config.as_ref().and_then(|config| config.get(name));
    let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    text.unwrap_or_default().to_owned()
}

/// Memory as planned.
fn memory(plan: &Plan) -> Vec<(String, u64)> {
    let kind = |name: &str| name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
    let parts = plan.parts.iter().map(|part| (kind(part.name), part.bytes));
    let slots = plan.slots.as_ref().map(|slots| ("expert_slots".to_owned(), slots.bytes()));
    parts.chain(slots).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::plan::Seats;

    /// The arguments of a model alone.
    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        model: crate::arguments::ModelArguments,
    }

    #[test]
    fn what_was_kept_with_another_type_of_keys_and_values_is_not_found() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/dsv4-calm-hf/model");
        let of = |kind: &str| {
            let words = ["flashmoe", golden, "--device", "cpu", "--kv-type", kind];
            let only = Only::try_parse_from(words).expect("options that exist");
            fingerprint(&Plan::resolve(&only.model, Seats::CONVERSATION).expect("a plan"))
        };
        let found = ["f32", "f16", "bf16", "q8", "fp8"].map(of);
        assert_eq!(found[1], of("f16"));
        for (index, one) in found.iter().enumerate() {
            assert!(!found[..index].contains(one), "{found:x?}");
        }
    }

    #[test]
    fn hosts_share_what_was_kept_of_the_same_contents_alone() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/qwen3-calm-hf/model");
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("copy");
        std::fs::create_dir(&copy).expect("made");
        for file in std::fs::read_dir(golden).expect("a folder").flatten() {
            std::fs::copy(file.path(), copy.join(file.file_name())).expect("copied");
        }
        let note = folder.path().join("contents");
        let of = |model: &str, kind: &str| {
            let words = ["flashmoe", model, "--device", "cpu", "--kv-type", kind];
            let only = Only::try_parse_from(words).expect("options that exist");
            let plan = Plan::resolve(&only.model, Seats::CONVERSATION).expect("a plan");
            let read = plan.checkpoint.contents(None).expect("read");
            // A note says the same, when it is written and when it is read.
            for _ in 0..2 {
                assert_eq!(plan.checkpoint.contents(Some(&note)).expect("read"), read);
            }
            (fingerprint(&plan), numerics(&plan, read))
        };
        let here = of(golden, "f16");
        let path = copy.to_str().expect("text");
        let there = of(path, "f16");
        assert_ne!(here.0, there.0, "times differ");
        assert_eq!(here.1, there.1, "contents do not");
        assert_ne!(of(path, "f32").1, there.1);
        let mut files = std::fs::read_dir(&copy).expect("a folder").flatten().map(|it| it.path());
        let weights = files.find(|it| it.extension().is_some_and(|it| it == "safetensors"));
        let weights = weights.expect("weights");
        let mut bytes = std::fs::read(&weights).expect("read");
        // One bit of the last tensor.
        *bytes.last_mut().expect("bytes") ^= 1;
        std::fs::write(&weights, bytes).expect("written");
        assert_ne!(of(path, "f16").1, there.1);
    }
}
