//! Standing between the router and the experts: replacing its logits, recording its choice.
//!
//! A synthetic model's router chooses nearly uniformly, which flatters or ruins a cache. For
//! benchmarks its logits can be replaced by a generator fitted to traces of real models
//! ([`store::trace::generator`]); this is a named option, since the output then means nothing.
//! The generator advances by one step per token and layer, in token order, whatever the chunks.
//!
//! A [`Recorder`] is shared with whoever wants the trace afterwards; it grows with every token, so it
//! is only attached to record.

use std::sync::{Arc, Mutex, PoisonError};

use store::LayerId;
use store::trace::Trace;
use store::trace::generator::{LayerRouting, QWEN3_30B};

/// What happens to routing; the default leaves it to the model and records nothing.
#[derive(Default)]
pub struct Routing {
    generator: Vec<LayerRouting>,
    recorder: Option<Recorder>,
}

impl Routing {
    /// Routing by the generator fitted to Qwen3-30B-A3B.
    pub fn calibrated(seed: u64, layers: usize, experts: usize) -> Self {
        let layer = |layer| LayerRouting::new(QWEN3_30B, seed, layer as u16, experts);
        Self { generator: (0..layers).map(layer).collect(), recorder: None }
    }

    /// Records every choice from now on.
    #[must_use]
    pub fn recorded_by(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Replaces the router's logits `[tokens, experts]` where a generator is set.
    pub fn override_logits(&mut self, layer: LayerId, experts: usize, logits: &mut [f32]) {
        if let Some(generator) = self.generator.get_mut(layer.index()) {
            for row in logits.chunks_exact_mut(experts) {
                row.copy_from_slice(generator.step());
            }
        }
    }

    /// Hears the chosen experts and their weights, `[tokens, k]` each, best first.
    pub fn record(&self, layer: LayerId, chosen: &[u16], weights: &[f32]) {
        if let Some(recorder) = &self.recorder {
            recorder.add(layer, chosen, weights);
        }
    }
}

/// Choices of one layer: ids and weights, `[tokens, k]`.
type LayerChoices = (Vec<u16>, Vec<f32>);

/// Collects the choices of one sequence.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Vec<LayerChoices>>>);

impl Recorder {
    /// A recorder for a model of `layers` layers.
    pub fn new(layers: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![LayerChoices::default(); layers])))
    }

    fn add(&self, layer: LayerId, chosen: &[u16], weights: &[f32]) {
        let mut layers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((all_chosen, all_weights)) = layers.get_mut(layer.index()) {
            all_chosen.extend_from_slice(chosen);
            all_weights.extend_from_slice(weights);
        }
    }

    /// What was recorded, in token order; `prompt_tokens` of it belong to the prompt.
    pub fn trace(&self, experts: usize, top_k: usize, prompt_tokens: usize) -> Trace {
        let layers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut trace = Trace::new(layers.len(), experts, top_k);
        let tokens = layers.iter().map(|(chosen, _)| chosen.len() / top_k).min().unwrap_or(0);
        for token in 0..tokens {
            let ranks = token * top_k..(token + 1) * top_k;
            for (chosen, weights) in layers.iter() {
                trace.ids.extend_from_slice(&chosen[ranks.clone()]);
                trace.weights.extend_from_slice(&weights[ranks.clone()]);
            }
        }
        trace.prompt_tokens = prompt_tokens.min(tokens);
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_do_not_change_the_generator() {
        let (layer, experts) = (LayerId(1), 8);
        let mut whole = vec![0.0; 6 * experts];
        Routing::calibrated(3, 2, experts).override_logits(layer, experts, &mut whole);
        let mut parts = vec![0.0; 6 * experts];
        let mut routing = Routing::calibrated(3, 2, experts);
        let (first, rest) = parts.split_at_mut(2 * experts);
        routing.override_logits(layer, experts, first);
        routing.override_logits(layer, experts, rest);
        assert_eq!(whole, parts);
        assert!(whole.iter().any(|&logit| logit != 0.0));
    }

    #[test]
    fn the_model_keeps_its_logits_by_default() {
        let mut logits = [1.0, 2.0];
        Routing::default().override_logits(LayerId(0), 2, &mut logits);
        assert_eq!(logits, [1.0, 2.0]);
    }

    #[test]
    fn a_trace_is_in_token_order_whatever_the_chunks() {
        let recorder = Recorder::new(2);
        let routing = Routing::default().recorded_by(recorder.clone());
        // A chunk of two tokens, then one token; two experts each.
        for (chunk, weight) in [([1, 2, 3, 4].as_slice(), 0.5), (&[5, 6], 0.25)] {
            for layer in 0..2 {
                let chosen: Vec<u16> = chunk.iter().map(|id| id + 10 * layer).collect();
                routing.record(LayerId(layer), &chosen, &vec![weight; chosen.len()]);
            }
        }
        let trace = recorder.trace(32, 2, 2);
        assert_eq!(trace.ids, [1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16]);
        assert_eq!((trace.tokens(), trace.prompt_tokens), (3, 2));
        assert_eq!(trace.weights[8..], [0.25; 4]);
    }
}
