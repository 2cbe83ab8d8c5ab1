//! `flashmoe score`: teacher-forced logits of given token ids, and how likely the model finds them.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use engine::EngineError;
use engine::backend::{Run, SequenceId, Uncancelled};
use engine::engine::{Engine, check_finite};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::arguments::ScoreArguments;
use crate::failure::Failure;
use crate::plan::{Plan, Seats};
use crate::progress::{Progress, Unit, say};

/// Rows of logits computed at once; the plan's buffer holds them.
const ROWS: usize = 8;

pub(crate) fn score(arguments: &ScoreArguments, out: &mut dyn Write) -> Result<()> {
    let ids = read_ids(&arguments.ids)?;
    let mut model = arguments.model.clone();
    let needed = (ids.len() + arguments.greedy) as u32;
    model.context.get_or_insert(needed.max(1));
    model.refuse_drafts("score computes given tokens, one by one behind them")?;
    let plan = Plan::resolve(&model, Seats::MEASUREMENT)?;
    plan.approximations().iter().for_each(|line| say(line));
    let vocabulary = plan.config.vocabulary;
    let mut loaded = plan.load()?;
    let engine = &mut loaded.engine;
    let sequence = engine.create_sequence().map_err(Failure::engine)?;
    let mut logits: Vec<f32> = Vec::new();
    let mut negative_log_likelihood = 0.0;
    let keep = arguments.logits.is_some();
    let mut bar = Progress::new("scoring", Unit::Tokens, ids.len() as f64);
    let mut last = Vec::new();
    let scored = engine.prefill(
        sequence,
        &ids,
        &Uncancelled,
        &mut |progress| bar.set(progress.tokens),
        &mut |engine, first, length| {
            for start in (0..length).step_by(ROWS) {
                let rows: Vec<usize> = (start..length.min(start + ROWS)).collect();
                let chunk = engine.logits(&rows)?;
                check_finite(chunk, vocabulary, first + start)?;
                for (row, values) in rows.iter().zip(chunk.chunks_exact(vocabulary)) {
                    if let Some(&next) = ids.get(first + row + 1) {
                        negative_log_likelihood -= log_probability(values, next as usize);
                    }
                    if first + row + 1 == ids.len() {
                        last = values.to_vec();
                    }
                }
                if keep {
                    logits.extend_from_slice(chunk);
                }
            }
            Ok(())
        },
    );
    bar.finish();
    scored.map_err(Failure::engine)?;
    let greedy = continued(engine, sequence, last, ids.len(), arguments.greedy);
    let greedy = greedy.map_err(Failure::engine)?;
    if let Some(path) = &arguments.logits {
        write_logits(path, ids.len(), vocabulary, &logits, &greedy)?;
    }
    let predicted = ids.len() - 1;
    let mean = negative_log_likelihood / predicted.max(1) as f64;
    let summary = serde_json::json!({
        "tokens": ids.len(),
        "predicted": predicted,
        "negative_log_likelihood": negative_log_likelihood,
        "mean": mean,
        "perplexity": mean.exp(),
        "greedy": greedy,
    });
    writeln!(out, "{summary}").map_err(Failure::io)?;
    Ok(())
}

/// The likeliest `count` tokens one by one, the first by the logits `last` of position `end` - 1.
fn continued(
    engine: &mut Engine,
    sequence: SequenceId,
    mut last: Vec<f32>,
    end: usize,
    count: usize,
) -> Result<Vec<i32>, EngineError> {
    let mut greedy = Vec::with_capacity(count);
    for step in 0..count {
        let token = arg_max(&last);
        greedy.push(token as i32);
        if step + 1 < count {
            engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled)?;
            last = engine.logits(&[0])?.to_vec();
            check_finite(&last, last.len(), end + step)?;
        }
    }
    Ok(greedy)
}

pub(super) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let text = std::fs::read(path)
        .map_err(Failure::io)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let ids = super::ids::parse(&text);
    Ok(ids.map_err(|problem| Failure::usage(format!("{}: {problem}", path.display())))?)
}

/// Natural logarithm of the softmax of `logits` at `token`, summed in f64.
fn log_probability(logits: &[f32], token: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&value| f64::from(value - largest).exp()).sum();
    f64::from(logits[token] - largest) - sum.ln()
}

/// The most likely token; ties go to the lowest id.
pub(super) fn arg_max(logits: &[f32]) -> u32 {
    let better =
        |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, better) as u32
}

fn write_logits(
    path: &Path,
    tokens: usize,
    vocabulary: usize,
    logits: &[f32],
    greedy: &[i32],
) -> Result<()> {
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let greedy_bytes: Vec<u8> = greedy.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = vec![tokens, vocabulary];
    let mut tensors = vec![("logits", TensorView::new(Dtype::F32, shape, &bytes)?)];
    if !greedy.is_empty() {
        let view = TensorView::new(Dtype::I32, vec![greedy.len()], &greedy_bytes)?;
        tensors.push(("greedy", view));
    }
    safetensors::serialize_to_file(tensors, None, path)
        .map_err(Failure::io)
        .with_context(|| format!("cannot write {}", path.display()))
}
