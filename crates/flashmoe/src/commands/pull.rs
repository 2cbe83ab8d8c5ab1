//! `flashmoe pull`: a model of the hub into the hub's own cache, so that no other program downloads it again.

use std::io::Write;

use anyhow::{Context as _, Result};
use hub::{Hub, HubError, ModelName, Pulled, RepositoryFile, Selection, Settings};
use serde_json::json;
use store::shown;

use super::headers::Headers;
use crate::arguments::{ByteSize, PullArguments};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit, say};

pub(crate) fn pull(arguments: &PullArguments, out: &mut dyn Write) -> Result<()> {
    let name: ModelName = arguments.name.parse().map_err(Failure::hub)?;
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    let hub = Hub::new(settings).map_err(Failure::hub)?;
    if arguments.dry_run {
        let interrupt = Interrupt::listen()?;
        let selection = select(&hub, &name, &interrupt)?;
        let (missing, all) = (hub.missing(&name, &selection), selection.bytes());
        if arguments.json {
            let file = |file: &RepositoryFile| json!({"path": file.path, "bytes": file.size});
            let files: Vec<_> = selection.files.iter().map(file).collect();
            let object = json!({
                "model": name.to_string(),
                "files": files,
                "bytes_total": all,
                "bytes_missing": missing,
            });
            writeln!(out, "{}", shown::json(&object)).map_err(Failure::io)?;
            return Ok(());
        }
        for file in &selection.files {
            let size = ByteSize(file.size).to_string();
            let path = store::shown::shown(&file.path);
            writeln!(out, "{size:>12}  {path}").map_err(Failure::io)?;
        }
        let (missing, all) = (ByteSize(missing), ByteSize(all));
        writeln!(out, "{all} in all, {missing} to download").map_err(Failure::io)?;
        return Ok(());
    }
    let Pulled { model, fetched, .. } = download(&hub, &name)?;
    let line = match arguments.json {
        true => {
            let path = model.to_string_lossy();
            let object =
                json!({"model": name.to_string(), "path": path, "bytes_downloaded": fetched});
            shown::json(&object)
        }
        false => model.display().to_string(),
    };
    writeln!(out, "{line}").map_err(Failure::io)?;
    Ok(())
}

/// What of `name` belongs to a model that can be run.
pub(crate) fn select(hub: &Hub, name: &ModelName, interrupt: &Interrupt) -> Result<Selection> {
    let repository = hub.describe(name, interrupt.flag()).map_err(Failure::hub)?;
    Ok(Selection::choose(name, &repository).map_err(Failure::hub)?)
}

/// Downloads what is missing of `name`, with progress.
pub(crate) fn download(hub: &Hub, name: &ModelName) -> Result<Pulled> {
    let interrupt = Interrupt::listen()?;
    let selection = select(hub, name, &interrupt)?;
    let missing = hub.missing(name, &selection);
    let total = selection.bytes();
    if let (None, Some(quant)) = (&name.quant, &selection.quant) {
        say(&format!("{name}: taking {quant}; {name}:QUANT takes another"));
    }
    if missing == total {
        let headers = Headers::fetch(hub, name, &selection, &interrupt)?;
        headers.check(name).context("nothing was downloaded")?;
    }
    if missing > 0 {
        let (missing, all) = (ByteSize(missing), ByteSize(total));
        let place = store::shown::path(hub.cache().root()).to_string();
        say(&format!("{name}: {missing} of {all} to download into {place}"));
    }
    let mut bar = Progress::new("pulling", Unit::Bytes, missing as f64);
    let mut told = false;
    let pulled = hub.pull(name, &selection, interrupt.flag(), &mut |status| {
        if status.waits && !told {
            say("another program downloads a file of this model: waiting for it");
        }
        told |= status.waits;
        if missing > 0 {
            let left = status.total.saturating_sub(status.done);
            bar.set(missing.saturating_sub(left) as f64);
        }
    });
    bar.finish();
    interrupt.reset();
    let pulled = pulled.map_err(|error| match error {
        HubError::Interrupted => anyhow::Error::from(Failure::Interrupted)
            .context("what has arrived is kept, the same command goes on there"),
        error => Failure::hub(error).into(),
    })?;
    match pulled.fetched {
        0 if missing == 0 => say(&format!("{name} is complete: nothing was downloaded")),
        fetched => say(&format!("{name}: {} downloaded and checked", ByteSize(fetched))),
    }
    Ok(pulled)
}
