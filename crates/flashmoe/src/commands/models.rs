//! `flashmoe list`, `show` and `rm`: the models that are on disk, whichever program brought them.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use hub::{Cache, Cached, ModelName, Settings};
use serde_json::json;
use store::shown;

use crate::arguments::{Age, ByteSize, ListArguments, RemoveArguments, ShowArguments};
use crate::failure::Failure;
use crate::models::{ambiguous, named_shortly};
use crate::progress::say;
use crate::shelf::{self, Shelf, Shelved};

fn cache() -> Result<Cache> {
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    Ok(Cache::new(&settings.cache))
}

pub(crate) fn list(arguments: &ListArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
    let models = cache.list().map_err(Failure::hub)?;
    let shelf = shelf::all();
    if arguments.json {
        let shelved = shelf.models.iter().map(shelved_row);
        let rows: Vec<_> = models.iter().map(row).chain(shelved).collect();
        writeln!(out, "{}", shown::json(&json!(rows))).map_err(Failure::io)?;
        return Ok(());
    }
    if arguments.names {
        let whole = models.iter().filter(|model| model.missing.is_none());
        let names = whole.map(|model| model.name.to_string());
        for name in names.chain(shelf.models.iter().map(|model| model.name.clone())) {
            writeln!(out, "{}", shown::line(&name)).map_err(Failure::io)?;
        }
        return Ok(());
    }
    if models.is_empty() && shelf.models.is_empty() {
        say(&format!(
            "no models in {}; `flashmoe pull OWNER/NAME` gets one",
            cache.root().display()
        ));
    }
    out.write_all(table(&lines(&models, &shelf)).as_bytes()).map_err(Failure::io)?;
    if shelf.others > 0 {
        say(&format!(
            "{} more in folders, not whole or of families that flashmoe does not run: `flashmoe inspect PATH` says why",
            shelf.others
        ));
    }
    Ok(())
}

/// A line of the table.
pub(crate) struct Line {
    name: String,
    size: String,
    modified: Option<SystemTime>,
    note: String,
}

impl From<&Cached> for Line {
    fn from(model: &Cached) -> Self {
        let bytes = ByteSize(model.bytes);
        Self {
            name: model.name.to_string(),
            size: match model.total {
                Some(total) if model.missing.is_some() => bytes.of(ByteSize(total)),
                _ => bytes.to_string(),
            },
            modified: model.modified,
            note: match model.missing.as_deref() {
                None => String::new(),
                Some("") => "partial".to_owned(),
                Some(missing) => format!("partial, {} is missing", shown::shown(missing)),
            },
        }
    }
}

impl From<&Shelved> for Line {
    fn from(model: &Shelved) -> Self {
        Self {
            name: shown::line(&model.name).to_string(),
            size: ByteSize(model.bytes).to_string(),
            modified: model.modified,
            note: model.place.to_owned(),
        }
    }
}

/// A line for each model, those of the hub first.
pub(crate) fn lines(models: &[Cached], shelf: &Shelf) -> Vec<Line> {
    models.iter().map(Line::from).chain(shelf.models.iter().map(Line::from)).collect()
}

/// A header, and the lines: name, size, age, and whose it is or whether it is whole.
pub(crate) fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let name = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(4);
    let bytes = lines.iter().map(|line| line.size.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:<name$}  {:>bytes$}  CHANGED\n", "NAME", "SIZE");
    let now = SystemTime::now();
    for line in lines {
        let age = line.modified.and_then(|time| now.duration_since(time).ok());
        let age = age.map_or_else(|| "?".to_owned(), |age| format!("{} ago", Age(age)));
        let Line { name: model, size, note, .. } = line;
        text.push_str(format!("{model:<name$}  {size:>bytes$}  {age:<12}  {note}").trim_end());
        text.push('\n');
    }
    text
}

fn shelved_row(model: &Shelved) -> serde_json::Value {
    json!({
        "name": model.name,
        "path": model.path,
        "bytes": model.bytes,
        "bytes_total": model.bytes,
        "modified": seconds(model.modified),
        "complete": true,
        "place": model.place,
    })
}

/// Seconds since 1970.
fn seconds(time: Option<SystemTime>) -> Option<u64> {
    let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map(|time| time.as_secs())
}

fn row(model: &Cached) -> serde_json::Value {
    json!({
        "name": model.name.to_string(),
        "path": model.path,
        "bytes": model.bytes,
        "bytes_total": model.total.or(model.missing.is_none().then_some(model.bytes)),
        "modified": seconds(model.modified),
        "complete": model.missing.is_none(),
        "place": "hub",
    })
}

/// The entries of the list that `text` names: one, or all quantisations of a repository.
fn named(cache: &Cache, text: &str) -> Result<(ModelName, Vec<Cached>)> {
    let all = cache.list().map_err(Failure::hub)?;
    let name = match text.parse::<ModelName>() {
        Ok(name) => name,
        Err(error) => match named_shortly(&all, text).as_slice() {
            [] => return Err(Failure::hub(error).into()),
            [one] => one.name.clone(),
            [first, others @ ..] => {
                let repository = first.name.repository();
                if others.iter().any(|it| it.name.repository() != repository) {
                    return Err(ambiguous(text, &named_shortly(&all, text)));
                }
                ModelName { quant: None, ..first.name.clone() }
            }
        },
    };
    let found: Vec<Cached> = all
        .into_iter()
        .filter(|model| model.name.repository() == name.repository())
        .filter(|model| match (&name.quant, &model.name.quant) {
            (Some(asked), Some(quant)) => asked.is(&quant.0),
            (Some(_), None) => false,
            (None, _) => true,
        })
        .collect();
    if found.is_empty() {
        let reason = format!("{name} is not on this disk; `flashmoe list` says what is");
        return Err(Failure::usage(reason).into());
    }
    Ok((name, found))
}

/// A folder or a file of the user: what it is and what belongs to it.
fn show_path(path: &Path, json: bool, out: &mut dyn Write) -> Result<()> {
    let checkpoint = crate::models::open(path)?;
    let files: Vec<(String, u64)> = checkpoint
        .files
        .iter()
        .map(|file| (file.path.display().to_string(), file.length))
        .collect();
    let model = Shelved {
        name: path.display().to_string(),
        path: path.to_owned(),
        bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        modified: path.metadata().and_then(|it| it.modified()).ok(),
        place: "",
    };
    if json {
        let files = files
            .iter()
            .map(|(path, bytes)| json!({"path": path, "bytes": bytes, "bytes_total": bytes}));
        let files: Vec<_> = files.collect();
        let all = shown::json(&json!({"models": [shelved_row(&model)], "files": files}));
        writeln!(out, "{all}").map_err(Failure::io)?;
        return Ok(());
    }
    let mut text = table(&[Line::from(&model)]);
    text.push('\n');
    for (path, bytes) in &files {
        let size = ByteSize(*bytes).to_string();
        text.push_str(&format!("{size:>20}  {}\n", shown::line(path)));
    }
    text.push_str(&format!("\n`flashmoe inspect {}` says what it is made of\n", shown::path(path)));
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

pub(crate) fn show(arguments: &ShowArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
    let path = Path::new(&arguments.name);
    if path.exists() {
        return show_path(path, arguments.json, out);
    }
    let is_hubs = arguments.name.contains('/')
        || !named_shortly(&cache.list().map_err(Failure::hub)?, &arguments.name).is_empty();
    if let ([model], false) = (shelf::named(&arguments.name).as_slice(), is_hubs) {
        return show_path(&model.path, arguments.json, out);
    }
    let (name, found) = named(&cache, &arguments.name)?;
    let files = cache.files(&name);
    if arguments.json {
        let models: Vec<_> = found.iter().map(row).collect();
        let files: Vec<_> = files
            .iter()
            .map(|it| json!({"path": it.path, "bytes": it.bytes, "bytes_total": it.total}))
            .collect();
        let all = shown::json(&json!({"models": models, "files": files}));
        writeln!(out, "{all}").map_err(Failure::io)?;
        return Ok(());
    }
    let mut text = table(&found.iter().map(Line::from).collect::<Vec<_>>());
    for model in &found {
        text.push_str(&format!("{}\n", shown::path(&model.path)));
    }
    text.push('\n');
    for file in &files {
        let (bytes, total) = (ByteSize(file.bytes), ByteSize(file.total));
        let size = if bytes == total { bytes.to_string() } else { bytes.of(total) };
        text.push_str(&format!("{size:>20}  {}\n", shown::shown(&file.path)));
    }
    text.push_str(&match found.iter().find(|model| model.missing.is_some()) {
        Some(model) => format!(
            "\n`flashmoe pull {0}` goes on with the download, `flashmoe rm {0}` removes what has arrived\n",
            model.name
        ),
        None => format!("\n`flashmoe inspect {name}` says what it is made of\n"),
    });
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

pub(crate) fn remove(arguments: &RemoveArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
    if Path::new(&arguments.name).exists() {
        let path = shown::path(Path::new(&arguments.name)).to_string();
        let reason =
            format!("{path} is a file or folder of yours: rm removes downloads of the hub by name");
        return Err(Failure::usage(reason).into());
    }
    let (name, found) = named(&cache, &arguments.name)?;
    let bytes = ByteSize(found.iter().map(|model| model.bytes).sum());
    if !arguments.yes {
        if !std::io::stdin().is_terminal() {
            let reason = format!("rm {name}: no terminal to ask on; --yes removes {bytes}");
            return Err(Failure::usage(reason).into());
        }
        let mut answer = String::new();
        let mut ask = std::io::stderr();
        let asked = write!(ask, "Remove {name} ({bytes})? [y/N] ").and_then(|()| ask.flush());
        asked.and_then(|()| std::io::stdin().lock().read_line(&mut answer)).map_err(Failure::io)?;
        if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            say("nothing was removed");
            return Ok(());
        }
    }
    let freed = cache.remove(&name).map_err(Failure::hub)?;
    writeln!(out, "{name} removed, {} freed", ByteSize(freed)).map_err(Failure::io)?;
    Ok(())
}
