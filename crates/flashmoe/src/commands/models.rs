//! `flashmoe list`, `show` and `rm`: the models that are on disk, whichever program downloaded them.

use std::io::{BufRead, IsTerminal, Write};
use std::time::SystemTime;

use anyhow::Result;
use hub::{Cache, Cached, ModelName, Settings};
use serde_json::json;
use store::shown;

use crate::arguments::{Age, ByteSize, ListArguments, RemoveArguments, ShowArguments};
use crate::failure::Failure;
use crate::progress::say;

fn cache() -> Result<Cache> {
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    Ok(Cache::new(&settings.cache))
}

pub(crate) fn list(arguments: &ListArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
    let models = cache.list().map_err(Failure::hub)?;
    if arguments.json {
        let rows: Vec<_> = models.iter().map(row).collect();
        writeln!(out, "{}", shown::json(&json!(rows))).map_err(Failure::io)?;
        return Ok(());
    }
    if models.is_empty() {
        say(&format!(
            "no models in {}; `flashmoe pull OWNER/NAME` gets one",
            cache.root().display()
        ));
    }
    out.write_all(table(&models).as_bytes()).map_err(Failure::io)?;
    Ok(())
}

/// A line for each model: name, size, age and whether it is complete.
pub(crate) fn table(models: &[Cached]) -> String {
    let width = models.iter().map(|it| it.name.to_string().len()).max().unwrap_or(0).max(4);
    let now = SystemTime::now();
    let mut text = String::new();
    for model in models {
        let age = model.modified.and_then(|time| now.duration_since(time).ok());
        let age = age.map_or_else(|| "?".to_owned(), |age| format!("{} ago", Age(age)));
        let bytes = ByteSize(model.bytes).to_string();
        let note = match &model.missing {
            Some(missing) => format!("  incomplete, {} is missing", shown::shown(missing)),
            None => String::new(),
        };
        let name = model.name.to_string();
        text.push_str(format!("{name:<width$}  {bytes:>10}  {age:<12}{note}").trim_end());
        text.push('\n');
    }
    text
}

fn row(model: &Cached) -> serde_json::Value {
    let modified = model.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "name": model.name.to_string(),
        "path": model.path,
        "bytes": model.bytes,
        "modified": modified.map(|time| time.as_secs()),
        "complete": model.missing.is_none(),
    })
}

/// The entries of the list that `text` names: one, or all quantisations of a repository.
fn named(cache: &Cache, text: &str) -> Result<(ModelName, Vec<Cached>)> {
    let all = cache.list().map_err(Failure::hub)?;
    let lower = text.to_lowercase();
    let short = |model: &&Cached| {
        let name = model.name.to_string().to_lowercase();
        name.split_once('/').is_some_and(|(_, short)| short == lower)
    };
    let name = match text.parse::<ModelName>() {
        Ok(name) => name,
        Err(error) => match all.iter().find(short) {
            Some(model) => model.name.clone(),
            None => return Err(Failure::hub(error).into()),
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

pub(crate) fn show(arguments: &ShowArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
    let (name, found) = named(&cache, &arguments.name)?;
    let files = cache.files(&name);
    if arguments.json {
        let models: Vec<_> = found.iter().map(row).collect();
        let files: Vec<_> =
            files.iter().map(|(path, bytes)| json!({"path": path, "bytes": bytes})).collect();
        let all = shown::json(&json!({"models": models, "files": files}));
        writeln!(out, "{all}").map_err(Failure::io)?;
        return Ok(());
    }
    let mut text = table(&found);
    for model in &found {
        text.push_str(&format!("{}\n", shown::path(&model.path)));
    }
    text.push('\n');
    for (path, bytes) in &files {
        let bytes = ByteSize(*bytes).to_string();
        text.push_str(&format!("{bytes:>12}  {}\n", shown::shown(path)));
    }
    text.push_str(&format!("\n`flashmoe inspect {name}` says what it is made of\n"));
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}

pub(crate) fn remove(arguments: &RemoveArguments, out: &mut dyn Write) -> Result<()> {
    let cache = cache()?;
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
