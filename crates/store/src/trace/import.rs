//! Traces of other programs: the route CSV of BigMoeOnEdge and the JSON lines of waste.

use std::collections::BTreeMap;
use std::io::BufRead;

use super::{Trace, TraceError};

fn wrong(at: usize, field: &'static str, found: &str, expected: &str) -> TraceError {
    TraceError::Field { at, field, found: found.into(), expected: expected.into() }
}

/// A column that counts: a whole number, however it is spelled.
fn index_of(
    at: usize,
    field: &'static str,
    value: Result<f64, TraceError>,
) -> Result<usize, TraceError> {
    let value = value?;
    if value.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&value) {
        return Ok(value as usize);
    }
    Err(wrong(at, field, &value.to_string(), "a whole number from 0"))
}

/// Ids and weights by rank, of each step and layer.
type Chosen = BTreeMap<(usize, usize), Vec<(u16, f32)>>;

/// Reads a `route_trace v1` CSV: shape in comments, then one line per rank with the columns
/// `turn,phase,step,layer,slot,expert,weight,...`; phase 0 is the prompt, which is written layer by
/// layer.
///
/// Engines compute the last layer of a prompt for its last token only. A [`Trace`] is dense, so the
/// tokens that a layer did not see get the first choice that it made: nothing new becomes resident.
pub fn from_csv(input: impl BufRead) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut chosen = Chosen::new();
    let mut prompt_tokens = 0;
    for (index, line) in input.lines().enumerate() {
        let (line, at) = (line?, index + 1);
        if line.starts_with('#') {
            read_shape(&mut trace, &line, at)?;
            continue;
        }
        if line.starts_with("turn") || line.trim().is_empty() {
            continue;
        }
        let mut columns = line.split(',');
        let mut number = |field: &'static str| {
            let text = columns.next().unwrap_or_default();
            text.parse::<f64>().map_err(|_| wrong(at, field, text, "a number"))
        };
        let (_turn, phase) = (number("turn")?, number("phase")?);
        let columns = ["step", "layer", "slot", "expert"];
        let [step, layer, slot, expert] = columns.map(|field| index_of(at, field, number(field)));
        let (step, layer, slot, expert) = (step?, layer?, slot?, expert?);
        let weight = number("weight")?;
        if chosen.is_empty() {
            trace.check_shape(at)?;
        }
        if layer >= trace.layers || expert >= trace.experts {
            return Err(wrong(at, "layer, expert", &line, "a layer and an expert of the header"));
        }
        let ranks = chosen.entry((step, layer)).or_default();
        if slot != ranks.len() || ranks.len() == trace.top_k {
            return Err(wrong(at, "slot", &slot.to_string(), "the next rank of step and layer"));
        }
        ranks.push((expert as u16, weight as f32));
        if phase == 0.0 {
            prompt_tokens = prompt_tokens.max(step + 1);
        }
    }
    let tokens = chosen.last_key_value().map_or(0, |((step, _), _)| step + 1);
    if tokens > chosen.len() {
        // Every token is seen by at least one layer: a step far off would ask for memory that no token fills.
        return Err(wrong(0, "step", &tokens.to_string(), "steps without gaps"));
    }
    // A comment further down may have changed the shape.
    trace.check_shape(0)?;
    trace.prompt_tokens = prompt_tokens;
    fill(&mut trace, &chosen, tokens)?;
    if trace.ids.is_empty() {
        return Err(wrong(0, "length", "0", "at least one token"));
    }
    Ok(trace)
}

/// Numbers of the shape in a line of comments.
fn read_shape(trace: &mut Trace, line: &str, at: usize) -> Result<(), TraceError> {
    for (name, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
        let slot = match name {
            "n_layer" => &mut trace.layers,
            "n_expert" => &mut trace.experts,
            "n_expert_used" => &mut trace.top_k,
            _ => continue,
        };
        *slot = value.parse().map_err(|_| wrong(at, "shape", value, "a number"))?;
    }
    Ok(())
}

/// Writes the choices of all tokens and layers; a layer's first choice stands for tokens of the prompt that it did not
/// see.
fn fill(trace: &mut Trace, chosen: &Chosen, tokens: usize) -> Result<(), TraceError> {
    let first_of = |layer| (0..trace.prompt_tokens).find_map(|step| chosen.get(&(step, layer)));
    let first: Vec<Option<&Vec<(u16, f32)>>> = (0..trace.layers).map(first_of).collect();
    for step in 0..tokens {
        for (layer, first) in first.iter().enumerate() {
            let unseen = first.filter(|_| step < trace.prompt_tokens);
            let ranks = chosen.get(&(step, layer)).or(unseen);
            let ranks = ranks.filter(|ranks| ranks.len() == trace.top_k).ok_or_else(|| {
                wrong(0, "length", &format!("step {step}, layer {layer}"), "all ranks of it")
            })?;
            trace.ids.extend(ranks.iter().map(|(id, _)| id));
            trace.weights.extend(ranks.iter().map(|(_, weight)| weight));
        }
    }
    Ok(())
}

/// Reads JSON lines `{"tok": n, "layers": [[id, ...], ...]}` of a model with `experts` experts.
pub fn from_jsonl(input: impl BufRead, experts: usize) -> Result<Trace, TraceError> {
    #[derive(serde::Deserialize)]
    struct Line {
        layers: Vec<Vec<u16>>,
    }
    let mut trace = Trace::default();
    for (index, line) in input.lines().enumerate() {
        let (line, at) = (line?, index + 1);
        if line.trim().is_empty() {
            continue;
        }
        let parsed: Line = serde_json::from_str(&line)
            .map_err(|error| wrong(at, "line", &error.to_string(), "a JSON object"))?;
        if trace.ids.is_empty() {
            trace =
                Trace::new(parsed.layers.len(), experts, parsed.layers.first().map_or(0, Vec::len));
            trace.check_shape(at)?;
        }
        let even = parsed.layers.iter().all(|layer| layer.len() == trace.top_k);
        if parsed.layers.len() != trace.layers || !even {
            return Err(wrong(at, "shape", &line, "the shape of the first line"));
        }
        for &id in parsed.layers.iter().flatten() {
            if usize::from(id) >= experts {
                return Err(wrong(at, "expert", &id.to_string(), "an expert of the model"));
            }
            trace.ids.push(id);
        }
    }
    if trace.ids.is_empty() {
        return Err(wrong(0, "length", "0", "at least one token"));
    }
    Ok(trace)
}
