//! `flashmoe cache`: prompts that servers keep on disk, looked at, checked and removed.

use std::io::Write;
use std::time::SystemTime;

use anyhow::Result;
use serde_json::{Value, json};
use server::work::kept::{self, KeptError, KeptModel};
use store::shown;

use crate::arguments::{Age, ByteSize, CacheArguments, CacheCommand, CacheFolder};
use crate::failure::Failure;

pub(crate) fn cache(arguments: &CacheArguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.command {
        CacheCommand::Ls(place) => list(place, out),
        CacheCommand::Verify(place) => verify(place, out),
        CacheCommand::Purge(purge) => {
            let CacheFolder { folder, model, json } = &purge.place;
            let age = purge.older_than.map(|age| age.0);
            let purged = kept::purge(folder, model.as_deref(), age).map_err(failure)?;
            let (snapshots, bytes) = (purged.snapshots, ByteSize(purged.bytes));
            if *json {
                return print(&json!({"snapshots": snapshots, "bytes": purged.bytes}), out);
            }
            writeln!(out, "removed {snapshots} snapshots, {bytes}").map_err(Failure::io)?;
            Ok(())
        }
    }
}

fn list(place: &CacheFolder, out: &mut dyn Write) -> Result<()> {
    let models = kept::list(&place.folder, place.model.as_deref()).map_err(failure)?;
    if place.json {
        let models: Vec<Value> = models.iter().map(as_json).collect();
        return print(&json!({"models": models}), out);
    }
    for (index, model) in models.iter().enumerate() {
        if index > 0 {
            writeln!(out).map_err(Failure::io)?;
        }
        write_model(model, out).map_err(Failure::io)?;
    }
    Ok(())
}

/// A line of JSON. Names come from files of others.
fn print(object: &Value, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}", shown::json(object)).map_err(|error| Failure::io(error).into())
}

fn as_json(model: &KeptModel) -> Value {
    let now = SystemTime::now();
    let snapshots = model.snapshots.iter().map(|snapshot| {
        json!({
            "tokens": snapshot.tokens,
            "bytes": snapshot.bytes,
            "unused_s": now.duration_since(snapshot.used).unwrap_or_default().as_secs(),
        })
    });
    json!({
        "model": model.model,
        "fingerprint": model.fingerprint,
        "in_use": model.in_use,
        "pages": model.pages,
        "bytes": model.bytes,
        "snapshots": snapshots.collect::<Vec<_>>(),
    })
}

fn write_model(model: &KeptModel, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{} ({}){}: {} snapshots, {} pages, {}",
        if model.model.is_empty() { "unnamed" } else { &model.model },
        model.fingerprint,
        if model.in_use { ", in use" } else { "" },
        model.snapshots.len(),
        model.pages,
        ByteSize(model.bytes),
    )?;
    if model.snapshots.is_empty() {
        return Ok(());
    }
    writeln!(out, "{:>10}  {:>8}  {:>10}", "unused for", "tokens", "own bytes")?;
    let now = SystemTime::now();
    for snapshot in &model.snapshots {
        let age = Age(now.duration_since(snapshot.used).unwrap_or_default());
        let tokens = snapshot.tokens.map_or_else(|| "damaged".to_owned(), |it| it.to_string());
        let (age, bytes) = (age.to_string(), ByteSize(snapshot.bytes).to_string());
        writeln!(out, "{age:>10}  {tokens:>8}  {bytes:>10}")?;
    }
    Ok(())
}

fn verify(place: &CacheFolder, out: &mut dyn Write) -> Result<()> {
    let found = kept::verify(&place.folder, place.model.as_deref()).map_err(failure)?;
    if place.json {
        let damaged = found.damaged.iter();
        let damaged: Vec<_> = damaged
            .map(|(path, wrong)| json!({"path": path.to_string_lossy(), "problem": wrong}))
            .collect();
        let object = json!({"files": found.files, "bytes": found.bytes, "damaged": damaged});
        print(&object, out)?;
    } else {
        for (path, wrong) in &found.damaged {
            writeln!(out, "{}: {wrong}", path.display()).map_err(Failure::io)?;
        }
        let (files, bytes) = (found.files, ByteSize(found.bytes));
        writeln!(out, "{files} files ({bytes}) are as they were written").map_err(Failure::io)?;
    }
    match found.damaged.len() {
        0 => Ok(()),
        count => {
            let reason = anyhow::anyhow!(
                "{count} files are damaged; a server removes each when it meets it, and computes its prompt anew"
            );
            Err(Failure::io(reason).into())
        }
    }
}

fn failure(error: KeptError) -> Failure {
    match error {
        KeptError::Io { .. } => Failure::io(error),
        KeptError::NotKept { .. } | KeptError::NoSuchModel { .. } => {
            Failure::usage(error.to_string())
        }
    }
}
