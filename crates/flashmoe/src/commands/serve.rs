//! `flashmoe serve`: a model behind the protocols of the clients.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use engine::routing::Heat;
use server::work::{DiskOptions, EngineWorker, Loading, ModelCard, SharedOptions, WorkerOptions};
use server::{
    Level, Limits, Line, Log, ServeError, ServeOptions, Server, Stopper, TlsOptions, TlsProblem,
};
use store::format::{Checkpoint, SourceKind};
use store::io::platform::{Access, access};
use store::shown;

use crate::arguments::{LogFormat, ServeArguments};
use crate::examples::Examples;
use crate::failure::Failure;
use crate::plan::language::LanguageBeside;
use crate::plan::load::Tell;
use crate::plan::{Plan, Seats};
use crate::progress::{say, say_json};
use crate::sampling::sampling_options;
use crate::supervisor::Supervisor;

/// Longest file of keys or of a system prompt.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Panics of the engine within a minute that a server does not survive.
const PANICS_MAX: usize = 3;
/// Reading so many bytes takes a while: it is told.
const TOLD_BYTES: u64 = 1 << 30;

pub(crate) fn serve(arguments: &ServeArguments, out: &mut dyn Write) -> Result<()> {
    store::heap::configure();
    let log = log(arguments);
    let supervisor = Supervisor::of_environment();
    let options = ServeOptions {
        address: SocketAddr::new(arguments.host, arguments.port),
        keys: keys(arguments)?,
        share_prefixes: arguments.share_prefixes,
        allow_remote_without_key: arguments.allow_remote_without_key,
        allowed_hosts: arguments.allow_host.clone(),
        allowed_origins: arguments.allow_origin.clone(),
        tls: tls(arguments),
        log: log.clone(),
        ..ServeOptions::default()
    };
    // The address is taken before the model is loaded, so that a mistake is known at once.
    let mut server = Server::bind(options).map_err(failure)?;
    let address = server.address().map_err(failure)?;
    let system = match &arguments.system_file {
        None => None,
        Some(file) => Some(small_file("--system-file", file)?),
    };
    let seats = Seats {
        sequences: arguments.sequences.map(usize::from),
        snapshots: arguments.snapshots.map(usize::from),
        waiting: Some(arguments.queue),
    };
    let plan = Plan::resolve(&arguments.model, seats)?;
    let mut limits = Limits {
        drain_delay: arguments.drain_delay.0,
        grace: arguments.drain_timeout.0,
        ..plan.requests.as_ref().map_or_else(Limits::default, |requests| requests.limits)
    };
    if arguments.tls_cert.is_some() {
        // Records on their way in and out take as much again as plain text does.
        limits.connections /= 2;
    }
    server.set_limits(limits);
    let sampling = sampling_options(&arguments.sampling, &plan.checkpoint)?;
    let language = LanguageBeside::start(&plan)?;
    for line in plan.approximations() {
        say(&line);
    }
    // A GPU routes by itself and does not report its choices.
    let heat = plan.device.is_none().then(|| {
        let (layers, experts) = (plan.config.layers.len(), plan.config.moe.experts);
        Heat::new(layers, experts)
    });
    let routing = match &heat {
        Some(heat) => plan.routing().counted_by(heat.clone()),
        None => plan.routing(),
    };
    // What is served is known before the weights are there: clients are told how far it is.
    let card = card(arguments, &plan, sampling)?;
    let (name, context) = (card.id.clone(), plan.backend.context);
    let loading = Arc::new(Loading::new(card.clone()));
    let stopper = server.stopper();
    supervisor.watch(Arc::clone(&loading), limits.silence).map_err(Failure::io)?;
    let serving = {
        let loading = Arc::clone(&loading);
        std::thread::Builder::new().name("serve".to_owned()).spawn(move || server.run(loading))
    };
    let serving = serving.map_err(Failure::io)?;
    let worker = (|| {
        let told = Arc::clone(&loading);
        let tell: Tell = Arc::new(move |share| told.advance(share));
        let loaded = plan.load_telling(routing, &tell)?;
        let language = language.joined()?;
        let options = WorkerOptions {
            model: card,
            context,
            sequences: plan.backend.sequences,
            queue: arguments.queue,
            system,
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
    })();
    let ended = |serving: JoinHandle<Result<(), ServeError>>| -> Result<()> {
        let served = serving.join().map_err(|_| anyhow::anyhow!("serving ended by a panic"))?;
        served.map_err(|error| failure(error).into())
    };
    let worker: Arc<EngineWorker> = match worker {
        Ok(worker) => worker,
        Err(error) => {
            stopper.stop();
            ended(serving)?;
            return Err(error);
        }
    };
    loading.finish(Arc::clone(&worker) as Arc<dyn server::work::Worker>);
    stop_at_signals(stopper, supervisor.clone())?;
    if serving.is_finished() {
        return ended(serving);
    }
    server::check_descriptors().map_err(failure)?;
    crate::failure::serves();
    let together = match plan.backend.sequences {
        1 => "one conversation at a time".to_owned(),
        count => format!("{count} conversations at a time"),
    };
    let pages = match arguments.allow_origin.as_slice() {
        [] => "other hosts' web pages need --allow-origin".to_owned(),
        allowed => format!("also for web pages of {}", allowed.join(", ")),
    };
    let scheme = if arguments.tls_cert.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let line = Line {
        level: Level::Info,
        text: format!("{name} ({together}, {context} tokens of context, {pages}) at {url}"),
        fields: vec![("url", url.clone().into())],
    };
    writeln!(out, "{}", written(arguments.log_format, &line))
        .and_then(|()| out.flush())
        .map_err(Failure::io)?;
    supervisor.ready();
    let served = ended(serving);
    // What is kept is written now.
    worker.stop();
    served
}

/// Where lines of the log go: to standard error, each with its time.
fn log(arguments: &ServeArguments) -> Log {
    let format = arguments.log_format;
    Log::new(arguments.log_level, move |line: &Line| {
        let text = written(format, line);
        match format {
            LogFormat::Text => say(&text),
            LogFormat::Json => say_json(&text),
        }
    })
}

/// A line of the log with the time.
fn written(format: LogFormat, line: &Line) -> String {
    let now = SystemTime::now();
    match format {
        LogFormat::Text => line.text_at(now),
        LogFormat::Json => line.json_at(now),
    }
}

/// The keys of the command line and of the file.
fn keys(arguments: &ServeArguments) -> Result<Vec<String>> {
    let mut keys = arguments.api_key.clone();
    if let Some(file) = &arguments.api_key_file {
        let text = small_file("--api-key-file", file)?;
        warn_of_readers("--api-key-file", file);
        let before = keys.len();
        let lines = text.lines().map(str::trim);
        keys.extend(
            lines.filter(|key| !key.is_empty() && !key.starts_with('#')).map(str::to_owned),
        );
        if keys.len() == before {
            // An empty file must not open the server.
            let problem = format!("--api-key-file {} has no key", shown::path(file));
            return Err(Failure::usage(problem).into());
        }
    }
    Ok(keys)
}

/// Says that a file of secrets is no secret. What cannot be found out is not said: who reads the file says more.
fn warn_of_readers(option: &str, file: &Path) {
    // Of a link it is the file that counts.
    let found = file.canonicalize().and_then(|file| access(&file));
    if matches!(found, Ok(Access::Others)) {
        let file = shown::path(file);
        say(&format!("{option} {file}: others than its owner may read it; take that right away"));
    }
}

/// How often certificates are looked at.
const RENEWAL: Duration = Duration::from_secs(60);

/// The certificate and key that were named.
fn tls(arguments: &ServeArguments) -> Option<TlsOptions> {
    let (certificate, key) = (arguments.tls_cert.clone()?, arguments.tls_key.clone()?);
    warn_of_readers("--tls-key", &key);
    Some(TlsOptions { certificate, key, renewal: RENEWAL })
}

/// The text of a file that an option names.
fn small_file(option: &str, file: &Path) -> Result<String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|it| it.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(Failure::io).with_context(|| shown::path(file).to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let file = shown::path(file);
        let problem = format!("{option} {file} has more than {FILE_BYTES_MAX} bytes");
        return Err(Failure::usage(problem).into());
    }
    Ok(text)
}

/// The first signal ends the server; a second one does not wait for answers in progress.
fn stop_at_signals(stopper: Stopper, supervisor: Supervisor) -> Result<()> {
    let mut stopping = false;
    let told = move || {
        if std::mem::replace(&mut stopping, true) {
            std::process::exit(130);
        }
        supervisor.stopping();
        stopper.stop();
    };
    crate::signals::listen(told).map_err(|error| Failure::io(error).into())
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
    let device = plan.device.as_ref();
    let device = device.map(|device| (&device.info.name, device.info.capability));
    folded(contents, &format!("{} {device:?}", arithmetic(plan)))
}

/// What decides the bits of a state, beside the model. Processors of all kinds agree.
fn arithmetic(plan: &Plan) -> String {
    let backend = &plan.backend;
    let device = plan.device.as_ref().map_or("cpu", |_| "gpu");
    format!(
        "{:?} {:?} {} {:?} {:?} {device} {}",
        backend.kv_type,
        backend.delta_form,
        backend.top_k,
        plan.arguments.arithmetic,
        plan.arguments.routing,
        env!("CARGO_PKG_VERSION"),
    )
}

fn folded(seed: u64, text: &str) -> u64 {
    text.bytes()
        .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// What clients are told about the model.
fn card(
    arguments: &ServeArguments,
    plan: &Plan,
    sampling: text::sampling::SamplingOptions,
) -> Result<ModelCard> {
    let checkpoint = &plan.checkpoint;
    let folder = arguments.model.model.canonicalize();
    let folder = folder.unwrap_or_else(|_| arguments.model.model.clone());
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
        id: arguments.served_name.clone().or(folder).unwrap_or_else(|| "model".to_owned()),
        family: plan.config.family.model_type().to_owned(),
        context: plan.backend.context,
        vocabulary: plan.config.vocabulary,
        layers: plan.config.layers.len(),
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

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Listen { ref source, .. } if source.kind() == ErrorKind::AddrInUse => {
            Failure::io(anyhow::anyhow!("{error}; --port takes another, 0 a free one"))
        }
        ServeError::Listen { .. }
        | ServeError::Threads(_)
        | ServeError::Descriptors(_)
        | ServeError::Tls { reason: TlsProblem::Read(_), .. } => Failure::io(error),
        ServeError::Broken => Failure::Run(error.into()),
        other => Failure::usage(other.to_string()),
    }
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
