//! `flashmoe trace`: records routing traces, replays them under every policy, measures their locality.
//!
//! Numbers come from [`store::trace`], which replays through the residency code that runs models;
//! here are files and tables.

mod record;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use store::cache::PolicyKind;
use store::cache::policy::DecayedLfru;
use store::trace::replay::{Scope, fixed, replay, replay_belady};
use store::trace::stats::NextLayer;
use store::trace::{Trace, TraceError, stats};

use super::table;
use crate::arguments::{TraceArguments, TraceCommand, TraceFiles, TraceReplayArguments};
use crate::failure::Failure;

/// First bytes of a trace written by `record`; a version byte follows.
const MAGIC: &[u8; 7] = b"fmtrace";

pub(crate) fn trace(arguments: &TraceArguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.command {
        TraceCommand::Record(arguments) => record::record(arguments, out),
        TraceCommand::Replay(arguments) => {
            let rows = replay_rows(arguments)?;
            table::print(arguments.input.form.choice(), &rows, &[], out).map_err(Failure::io)?;
            Ok(())
        }
        TraceCommand::Stats(arguments) => {
            let mut rows = Vec::new();
            for (name, trace) in read_all(&arguments.input)? {
                rows.extend(stats_rows(&name, &trace));
            }
            table::print(arguments.input.form.choice(), &rows, &[], out).map_err(Failure::io)?;
            Ok(())
        }
    }
}

fn replay_rows(arguments: &TraceReplayArguments) -> Result<Vec<Map<String, Value>>> {
    let wrong = arguments.half_life.iter().find(|value| !(**value > 0.0 && value.is_finite()));
    if let Some(value) = wrong {
        let reason = format!("--half-life {value}: give numbers of steps above 0");
        return Err(Failure::usage(reason).into());
    }
    let mut rows = Vec::new();
    for (name, trace) in read_all(&arguments.input)? {
        for &percent in &arguments.slots {
            if !(percent > 0.0 && percent <= 100.0) {
                let reason = format!("--slots {percent}: give percentages above 0 up to 100");
                return Err(Failure::usage(reason).into());
            }
            let layer = (trace.experts as f64 * percent / 100.0).round() as usize;
            if layer < trace.top_k {
                // A layer's choice must fit at once: there is nothing to choose a victim from.
                continue;
            }
            let (scope, slots) = if arguments.shared {
                (Scope::Global(layer * trace.layers), layer * trace.layers)
            } else {
                (Scope::PerLayer(layer), layer)
            };
            let under =
                |policy: PolicyKind| round(replay(&trace, scope, || policy.build()).percent(), 1);
            let half_lives = arguments.half_life.iter().map(|&half_life| {
                let hits = replay(&trace, scope, || Box::new(DecayedLfru { half_life }));
                (format!("LFRU {half_life} %"), json!(round(hits.percent(), 1)))
            });
            let mut row = object(json!({
                "trace": name,
                "slots": slots,
                "of experts %": percent,
                "LRU %": under(PolicyKind::Lru),
                "LFU %": under(PolicyKind::Lfu),
                "LFRU %": under(PolicyKind::DecayedLfru),
                "Belady %": round(replay_belady(&trace, scope).percent(), 1),
                "fixed %": round(fixed(&trace, layer).percent(), 1),
            }));
            row.extend(half_lives);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// One row per layer, then their mean.
fn stats_rows(name: &str, trace: &Trace) -> Vec<Map<String, Value>> {
    let layers: Vec<_> = (0..trace.layers).map(|layer| stats::layer(trace, layer)).collect();
    let next = |layer: usize| (layer + 1 < trace.layers).then(|| stats::next_layer(trace, layer));
    let row = |layer: Value, figures: [f64; 6], next: Option<NextLayer>| {
        let [overlap, gini, coverage, least, top_quarter, window] =
            figures.map(|value| round(value, 3));
        object(json!({
            "trace": name,
            "layer": layer,
            "tokens": trace.tokens() - trace.prompt_tokens,
            "overlap": overlap,
            "Gini": gini,
            "coverage": coverage,
            "least": least,
            "top quarter": top_quarter,
            "30 tokens": window,
            "next by this layer": next.map(|next| round(next.together, 3)),
            "next by use": next.map(|next| round(next.by_use, 3)),
        }))
    };
    let figures = |layer: &stats::LayerStats| {
        let &stats::LayerStats { overlap, gini, coverage, least, top_quarter, window, .. } = layer;
        [overlap, gini, coverage, least, top_quarter, window]
    };
    let nexts: Vec<_> = (0..layers.len()).map(next).collect();
    let mut rows: Vec<_> = layers
        .iter()
        .zip(&nexts)
        .enumerate()
        .map(|(i, (layer, next))| row(json!(i), figures(layer), *next))
        .collect();
    let count = layers.len().max(1) as f64;
    let mean = layers.iter().map(figures).fold([0.0; 6], |sum, layer| {
        std::array::from_fn(|figure| sum[figure] + layer[figure] / count)
    });
    let known: Vec<NextLayer> = nexts.into_iter().flatten().collect();
    let pairs = known.len().max(1) as f64;
    let next = (!known.is_empty()).then(|| NextLayer {
        together: known.iter().map(|next| next.together).sum::<f64>() / pairs,
        by_use: known.iter().map(|next| next.by_use).sum::<f64>() / pairs,
    });
    rows.push(row(json!("mean"), mean, next));
    rows
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

/// Reads every file; the name of a trace is its file's.
fn read_all(input: &TraceFiles) -> Result<Vec<(String, Trace)>> {
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, read(path, input.experts)?))
    };
    input.files.iter().map(read).collect()
}

fn read(path: &Path, experts: Option<u16>) -> Result<Trace> {
    let shown = path.display();
    let mut file = File::open(path).map_err(Failure::io).with_context(|| shown.to_string())?;
    let mut magic = [0; MAGIC.len()];
    let recorded = file.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    file.seek(SeekFrom::Start(0)).map_err(Failure::io).with_context(|| shown.to_string())?;
    let mut file = BufReader::new(file);
    let trace = if recorded {
        Trace::read(&mut file)
    } else if path.extension().is_some_and(|extension| extension == "jsonl") {
        let Some(experts) = experts else {
            let reason = format!("{shown}: JSON lines do not say how many experts: give --experts");
            return Err(Failure::usage(reason).into());
        };
        store::trace::from_jsonl(file, experts.into())
    } else {
        store::trace::from_csv(file)
    };
    trace.map_err(failure).with_context(|| shown.to_string())
}

pub(super) fn failure(error: TraceError) -> anyhow::Error {
    match error {
        TraceError::Io(error) => Failure::io(error).into(),
        error => Failure::model(error.into()).into(),
    }
}
