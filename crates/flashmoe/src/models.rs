//! Models as users name them, to paths: a path, `OWNER/NAME[:QUANT]`, a name that `flashmoe list` prints, or a folder
//! `models--OWNER--NAME` of the hub's cache. What is not there is said in one line with what to type instead.

use std::path::{Path, PathBuf};

use anyhow::Result;
use hub::{Cache, Cached, Found, Hub, ModelName, Settings};
use store::format::{Checkpoint, FormatError};
use store::shown::{self, quoted};

use crate::arguments::{Command, DoctorArguments, InspectArguments, TraceCommand};
use crate::commands::download;
use crate::failure::Failure;
use crate::progress::say;

/// What happens with a model of the hub that is not on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is an error that says how to get it.
    Refuse,
    /// It is downloaded, with a line that says so: as `ollama run` and `llama-cli -hf` do.
    Pull,
}

/// A model's path.
pub(crate) fn locate(model: &Path, absent: Absent) -> Result<PathBuf> {
    if model.exists() {
        return locate_path(model);
    }
    let text = model.to_string_lossy();
    let (bare, prefixed) = ModelName::without_prefix(&text);
    if !prefixed && !bare.contains('/') {
        return locate_short(bare, absent);
    }
    if !prefixed && is_local(model) {
        return Err(no_path(model));
    }
    match text.parse::<ModelName>() {
        Ok(name) => locate_name(&name, absent),
        Err(error) if prefixed => Err(Failure::usage(error.to_string()).into()),
        Err(_) => Err(no_path(model)),
    }
}

/// Replaces the model of a command by its path. Commands that answer get a model that is not here; the others only
/// say how to.
pub(crate) fn locate_all(command: Option<&mut Command>) -> Result<()> {
    let Some(command) = command else { return Ok(()) };
    let (model, absent) = match command {
        Command::Run(arguments) => (&mut arguments.model.model, Absent::Pull),
        Command::Serve(arguments) => {
            let also = std::mem::take(&mut arguments.also);
            arguments.more.extend(also);
            for model in std::iter::once(&mut arguments.model.model).chain(&mut arguments.more) {
                let name = model.to_string_lossy().parse::<ModelName>();
                // Not the commit, which is the name of the snapshot's folder.
                let name = name.ok().filter(|_| !model.exists()).map(|name| name.name);
                arguments.hub_names.push(name);
                *model = locate(model, Absent::Pull)?;
            }
            return Ok(());
        }
        Command::Stage(arguments) if !arguments.has_model() => return Ok(()),
        Command::Stage(arguments) => (&mut arguments.model.model, Absent::Pull),
        Command::Inspect(InspectArguments { path: arguments, .. }) | Command::Verify(arguments) => {
            (&mut arguments.model, Absent::Refuse)
        }
        Command::Pack(arguments) => (&mut arguments.source, Absent::Refuse),
        // A plan needs headers alone, which it fetches.
        Command::Plan(arguments) if remote(&arguments.model.model)?.is_some() => return Ok(()),
        Command::Plan(arguments) => (&mut arguments.model.model, Absent::Refuse),
        Command::Score(arguments) => (&mut arguments.model.model, Absent::Refuse),
        Command::Bench(arguments) => (&mut arguments.model, Absent::Refuse),
        Command::Report(arguments) => (&mut arguments.model.model, Absent::Refuse),
        Command::Eval(arguments) => {
            if let Some(reference) = &mut arguments.reference {
                *reference = locate(reference, Absent::Refuse)?;
            }
            (&mut arguments.model.model, Absent::Refuse)
        }
        Command::Doctor(DoctorArguments { model: Some(model), .. }) => (model, Absent::Refuse),
        Command::Trace(arguments) => match &mut arguments.command {
            TraceCommand::Record(arguments) => (&mut arguments.model.model, Absent::Refuse),
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    *model = locate(model, absent)?;
    Ok(())
}

/// A text that can only mean a path: its first folder is here.
fn is_local(model: &Path) -> bool {
    let mut parts = model.components();
    match parts.next() {
        Some(std::path::Component::Normal(first)) => {
            parts.next().is_some() && Path::new(first).is_dir()
        }
        _ => true,
    }
}

/// A name of the hub.
pub(crate) fn locate_name(name: &ModelName, absent: Absent) -> Result<PathBuf> {
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    let found = Cache::new(&settings.cache).find(name);
    match (found, absent) {
        (Found::Whole(path), _) => Ok(path),
        (Found::Several(quants), _) => Err(several(&name.to_string(), &quants)),
        (_, Absent::Pull) => {
            say(&format!("{name} is not on this disk: pulling it, as `flashmoe pull {name}` does"));
            let hub = Hub::new(settings).map_err(Failure::hub)?;
            Ok(download(&hub, name)?.model)
        }
        (Found::Nothing, Absent::Refuse) => {
            let reason = format!("{name} is not on this disk: `flashmoe pull {name}` gets it");
            Err(Failure::usage(reason).into())
        }
        (Found::Part(missing), Absent::Refuse) => Err(part(&name.to_string(), &missing, name)),
    }
}

/// The name of a model of the hub that is not on this disk: what `plan` can tell of from its headers.
pub(crate) fn remote(model: &Path) -> Result<Option<ModelName>> {
    let text = model.to_string_lossy();
    let (bare, prefixed) = ModelName::without_prefix(&text);
    let is_name = prefixed || bare.contains('/') && !is_local(model);
    let Ok(name) = text.parse::<ModelName>() else { return Ok(None) };
    if model.exists() || !is_name {
        return Ok(None);
    }
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    let found = Cache::new(&settings.cache).find(&name);
    Ok(matches!(found, Found::Nothing | Found::Part(_)).then_some(name))
}

/// A word without a slash: the name of one model on disk, without its owner.
fn locate_short(text: &str, absent: Absent) -> Result<PathBuf> {
    let models = listed();
    let found = named_shortly(&models, text);
    match found.as_slice() {
        [one] => locate_name(&one.name, absent),
        [] => {
            match crate::shelf::named(text).as_slice() {
                [] => {}
                [one] => return Ok(one.path.clone()),
                [one, other, ..] => {
                    let (one, other) = (shown::path(&one.path), shown::path(&other.path));
                    let reason = format!("{} may be {one} or {other}", quoted(text));
                    return Err(Failure::usage(reason).into());
                }
            }
            let wanted = text.to_lowercase();
            let close = models.iter().map(|model| model.name.to_string());
            let close: Vec<String> =
                close.filter(|name| name.to_lowercase().contains(&wanted)).take(3).collect();
            let hint = match close.is_empty() {
                true => "`flashmoe list` says which models are here, `flashmoe pull OWNER/NAME` \
                         gets one"
                    .to_owned(),
                false => format!("did you mean {}?", close.join(" or ")),
            };
            let reason =
                format!("there is no file, folder or model named {}; {hint}", quoted(text));
            Err(Failure::usage(reason).into())
        }
        several_found => Err(ambiguous(text, several_found)),
    }
}

/// The models that a name without an owner means: `NAME`, or `NAME:QUANT`, in any case.
pub(crate) fn named_shortly<'a>(models: &'a [Cached], text: &str) -> Vec<&'a Cached> {
    let wanted = text.to_lowercase();
    let short = |model: &&Cached| {
        let full = model.name.to_string().to_lowercase();
        full.split_once('/').is_some_and(|(_, name)| {
            name == wanted || name.split(':').next() == Some(wanted.as_str())
        })
    };
    models.iter().filter(short).collect()
}

pub(crate) fn ambiguous(text: &str, models: &[&Cached]) -> anyhow::Error {
    let names: Vec<String> = models.iter().map(|it| it.name.to_string()).collect();
    Failure::usage(format!("{} may be {}", quoted(text), names.join(" or "))).into()
}

/// A model's name for people: of a snapshot its repository, of anything else its folder or file.
pub(crate) fn short_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut parts = path.iter().rev().filter_map(|part| part.to_str());
    let repository = parts.find_map(ModelName::from_folder);
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
    repository.map(|name| name.repository()).or(file).unwrap_or_else(|| "model".to_owned())
}

/// The models on disk; none where the cache cannot be read.
pub(crate) fn listed() -> Vec<Cached> {
    let settings = Settings::from_environment();
    settings.ok().and_then(|it| Cache::new(&it.cache).list().ok()).unwrap_or_default()
}

/// A path that exists: as it is, but for a folder of the hub's cache.
fn locate_path(model: &Path) -> Result<PathBuf> {
    let folder = if model.is_dir() { model.canonicalize().ok() } else { None };
    let name = folder.as_ref().and_then(|it| ModelName::from_folder(it.file_name()?.to_str()?));
    let (Some(folder), Some(name)) = (folder, name) else { return Ok(model.to_owned()) };
    match Cache::find_folder(&folder, None) {
        Found::Whole(path) => Ok(path),
        Found::Several(quants) => {
            let name = name.repository();
            Err(several(&name, &quants))
        }
        Found::Part(missing) => Err(part(&shown::path(model).to_string(), &missing, &name)),
        Found::Nothing => {
            let reason = format!(
                "{}: this folder of the hub's cache has no snapshot; `flashmoe pull {name}` gets one",
                shown::path(model)
            );
            Err(Failure::usage(reason).into())
        }
    }
}

fn several(name: &str, quants: &[String]) -> anyhow::Error {
    let reason = format!(
        "{name} is here in several quantisations ({}): write for example {name}:{}",
        quants.join(", "),
        quants[0]
    );
    Failure::usage(reason).into()
}

fn part(what: &str, missing: &str, name: &ModelName) -> anyhow::Error {
    let missing = shown::shown(missing);
    let reason =
        format!("{what} is not complete, {missing} is missing: `flashmoe pull {name}` goes on");
    Failure::usage(reason).into()
}

fn no_path(model: &Path) -> anyhow::Error {
    let reason = format!(
        "{}: no such file or folder; `flashmoe list` says which models are here, `flashmoe pull OWNER/NAME` gets one",
        shown::path(model)
    );
    Failure::usage(reason).into()
}

/// Opens a checkpoint from its headers.
pub(crate) fn open(model: &Path) -> Result<Checkpoint> {
    opened(model, store::format::open)
}

/// Opens a checkpoint from its headers, for a look at it or a pack of it: it need not be one that runs where it lies.
pub(crate) fn open_to_pack(model: &Path) -> Result<Checkpoint> {
    opened(model, store::format::open_to_pack)
}

fn opened(model: &Path, open: fn(&Path) -> Result<Checkpoint, FormatError>) -> Result<Checkpoint> {
    let refused = match open(model) {
        Ok(checkpoint) => return Ok(checkpoint),
        Err(error) => error,
    };
    let hint = match &refused {
        FormatError::NotACheckpoint { .. } => hint(model),
        _ => None,
    };
    let error = anyhow::Error::from(Failure::model(refused.into()));
    Err(match hint {
        Some(hint) => error.context(format!("cannot open the model, {hint}")),
        None => error.context("cannot open the model"),
    })
}

/// What to add to the refusal of a folder that is no checkpoint: what it has in place of one.
fn hint(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().take(1000);
    let names: Vec<String> = entries.filter_map(|it| it.file_name().into_string().ok()).collect();
    if names.iter().any(|name| name.starts_with("models--")) {
        return Some(
            "it is a cache of the hub; name a model in it, see `flashmoe list`".to_owned(),
        );
    }
    let inside = names.iter().map(|name| folder.join(name));
    let model = inside.filter(|path| path.join("config.json").is_file()).min()?;
    Some(format!("did you mean {}?", shown::path(&model)))
}
