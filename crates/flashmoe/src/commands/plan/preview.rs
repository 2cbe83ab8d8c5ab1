//! A model that is not downloaded, from its headers: enough for `plan` to say whether it would run and how fast.

use std::path::{Path, PathBuf};

use anyhow::Result;
use hub::{Hub, ModelName, Selection, Settings, quants};

use crate::arguments::ByteSize;
use crate::commands::headers::Headers;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::machine::Memory;

/// Share of the memory to be had that a model may take to lie in it whole, beside context and system.
const WHOLE_SHARE: f64 = 0.75;

/// Headers of a model, and what there is to say before the plan.
pub(crate) struct Preview {
    pub(crate) headers: Headers,
    /// The model's name, with the quantisation that is planned.
    pub(crate) name: String,
    /// Where the model would lie: the disk to measure.
    pub(crate) place: PathBuf,
    pub(crate) lines: Vec<String>,
}

/// Fetches the headers of `name`.
pub(crate) fn preview(name: &ModelName, memory: Option<ByteSize>) -> Result<Preview> {
    let settings = Settings::from_environment().map_err(Failure::hub)?;
    let hub = Hub::new(settings).map_err(Failure::hub)?;
    let interrupt = Interrupt::listen()?;
    let repository = hub.describe(name, interrupt.flag()).map_err(Failure::hub)?;
    let budget = memory.map_or_else(|| Memory::read().spare(), |size| size.0);
    let sizes: Vec<(String, u64)> = quants(&repository)
        .into_iter()
        .map(|(quant, files)| (quant, files.iter().map(|file| file.size).sum()))
        .collect();
    let mut selection = Selection::choose(name, &repository).map_err(Failure::hub)?;
    if name.quant.is_none()
        && selection.quant.is_some()
        && let Some(best) = recommended(&sizes, budget)
    {
        let best = ModelName { quant: Some(hub::Quant(best.to_owned())), ..name.clone() };
        selection = Selection::choose(&best, &repository).map_err(Failure::hub)?;
    }
    let headers = Headers::fetch(&hub, name, &selection, &interrupt)?;
    headers.check_in_place(name)?;
    let place = hub.cache().root().to_owned();
    let place = place.ancestors().find(|it| it.is_dir()).unwrap_or(Path::new(".")).to_owned();
    let free = store::io::platform::space(&place).map_or(0, |space| space.free);
    let mut lines = vec![format!(
        "it is not downloaded: planned from {} of headers; {} to download, {} free on that disk",
        ByteSize(headers.fetched),
        ByteSize(hub.missing(name, &selection)),
        ByteSize(free)
    )];
    let planned = match &selection.quant {
        Some(quant) => format!("{}:{quant}", name.repository()),
        None => name.to_string(),
    };
    if !sizes.is_empty() {
        lines.push("quantisation       bytes".to_owned());
        for (quant, bytes) in &sizes {
            let note = match (*bytes as f64) < WHOLE_SHARE * budget as f64 {
                true => "fits in memory",
                false => "streams from disk",
            };
            let best = if selection.quant.as_ref() == Some(quant) { ", planned below" } else { "" };
            let bytes = ByteSize(*bytes).to_string();
            lines.push(format!("{quant:<14} {bytes:>12}  {note}{best}"));
        }
    }
    Ok(Preview { headers, name: planned, place, lines })
}

/// The largest quantisation that lies in memory whole; where none does, the usual one.
fn recommended(sizes: &[(String, u64)], budget: u64) -> Option<&str> {
    let fits = |entry: &&(String, u64)| (entry.1 as f64) < WHOLE_SHARE * budget as f64;
    let best = sizes.iter().filter(fits).max_by_key(|entry| entry.1);
    best.map(|entry| entry.0.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_is_taken() {
        let sizes = [("Q2_K", 10), ("Q4_K_M", 18), ("Q8_0", 34)]
            .map(|(name, bytes)| (name.to_owned(), bytes << 30));
        assert_eq!(recommended(&sizes, 32 << 30), Some("Q4_K_M"));
        assert_eq!(recommended(&sizes, 64 << 30), Some("Q8_0"));
        assert_eq!(recommended(&sizes, 8 << 30), None);
    }
}
