//! Standing between the router and the experts: replacing its logits, recording its choice.
//!
//! A synthetic model's router chooses nearly uniformly, which flatters or ruins a cache. For
//! benchmarks its logits can be replaced by a generator fitted to traces of real models
//! ([`store::trace::generator`]); this is a named option, since the output then means nothing.
//! The generator advances by one step per token and layer, in token order, whatever the chunks.
//!
//! A [`Recorder`] is shared with the caller that wants the trace afterwards; it grows with every token, so it
//! is only attached to record. With [`Recorder::looking_ahead`] the backend also applies each next layer's
//! router to this layer's input, and the recorder counts how well that prefetches the choice: what a
//! prefetcher could know one layer early.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use store::LayerId;
use store::split_mix::{SplitMix64, mix};
use store::trace::Trace;
use store::trace::generator::{LayerRouting, QWEN3_30B};

use crate::weights::{MatrixId, VectorId};

/// Noise on a generator's logits that makes guesses of them as good as one layer's router makes for the next: the best
/// eight of 256 hold 80.7 % of the chosen, which is measured of Qwen3.6-35B-A3B.
const GUESS_NOISE: f32 = 0.315;

/// What happens to routing; the default leaves it to the model and records nothing.
#[derive(Clone, Default)]
pub struct Routing {
    generator: Vec<LayerRouting>,
    seed: u64,
    recorder: Option<Recorder>,
    /// By layer, once told; `None` for layers without experts.
    routers: Vec<Option<MatrixId>>,
    router_biases: Vec<Option<VectorId>>,
    guesses: Option<Guesses>,
    heat: Option<Heat>,
}

/// How often each expert was chosen: a counter that its viewer reads while the model runs.
#[derive(Clone, Debug)]
pub struct Heat {
    /// `[layers, experts]`
    counts: Arc<[AtomicU32]>,
    experts: usize,
}

impl Heat {
    /// Zeros for a model of this shape.
    pub fn new(layers: usize, experts: usize) -> Self {
        let counts = (0..layers * experts).map(|_| AtomicU32::new(0)).collect();
        Self { counts, experts }
    }

    /// Tokens routed to each expert, `[layers][experts]`.
    pub fn read(&self) -> Vec<Vec<u32>> {
        let row = |row: &[AtomicU32]| row.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        self.counts.chunks(self.experts.max(1)).map(row).collect()
    }

    /// One thread counts, so adding needs no lock on the bus. After 2^32 tokens it begins anew.
    fn count(&self, layer: LayerId, chosen: &[u16]) {
        let start = layer.index() * self.experts;
        let Some(row) = self.counts.get(start..start + self.experts) else { return };
        for count in chosen.iter().filter_map(|&expert| row.get(usize::from(expert))) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }
}

/// The next layer's router at work on this layer's input.
#[derive(Clone)]
pub struct Guesses {
    /// `[tokens, experts]`
    pub(crate) logits: Vec<f32>,
    /// `[tokens, k]`, best first.
    pub(crate) chosen: Vec<u16>,
    /// `[tokens, k]`
    pub(crate) weights: Vec<f32>,
}

impl Routing {
    /// Routing by the generator fitted to Qwen3-30B-A3B.
    pub fn calibrated(seed: u64, layers: usize, experts: usize) -> Self {
        let layer = |layer| LayerRouting::new(QWEN3_30B, seed, layer as u16, experts);
        Self { generator: (0..layers).map(layer).collect(), seed, ..Self::default() }
    }

    /// Records every choice from now on.
    #[must_use]
    pub fn recorded_by(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Counts every choice from now on.
    #[must_use]
    pub fn counted_by(self, heat: Heat) -> Self {
        Self { heat: Some(heat), ..self }
    }

    /// True when a generator takes the router's place.
    pub fn replaces(&self) -> bool {
        !self.generator.is_empty()
    }

    /// Replaces the router's logits `[tokens, experts]` where a generator is set.
    pub fn override_logits(&mut self, layer: LayerId, experts: usize, logits: &mut [f32]) {
        if let Some(generator) = self.generator.get_mut(layer.index()) {
            for row in logits.chunks_exact_mut(experts) {
                row.copy_from_slice(generator.step());
            }
        }
    }

    /// What a guess one layer early makes of a generator's `logits` of `layer`, both `[tokens, experts]`: the logits
    /// with noise. The generator is not asked, so what it gives next does not depend on guesses; the same logits
    /// give the same guess.
    pub fn guess_logits(&self, layer: LayerId, experts: usize, logits: &[f32], out: &mut [f32]) {
        for (row, out) in logits.chunks_exact(experts).zip(out.chunks_exact_mut(experts)) {
            let hash = row.iter().take(2).fold(self.seed ^ u64::from(layer.0), |hash, logit| {
                mix(hash.wrapping_add(u64::from(logit.to_bits())))
            });
            let mut random = SplitMix64(hash);
            for (out, logit) in out.iter_mut().zip(row) {
                *out = logit + GUESS_NOISE * nearly_normal(random.next_u64());
            }
        }
    }

    /// Tells which router each layer has; guessing the next layer's choice needs them.
    pub fn set_routers(&mut self, routers: Vec<Option<MatrixId>>, biases: Vec<Option<VectorId>>) {
        if self.recorder.as_ref().is_some_and(Recorder::is_looking_ahead) {
            let (logits, chosen, weights) = Default::default();
            self.guesses = Some(Guesses { logits, chosen, weights });
        }
        self.routers = routers;
        self.router_biases = biases;
    }

    /// The same for a device that computes these layers alone: it has no other layer's router, so the first layer's
    /// choice is not guessed. A generator draws for each layer by itself; what records is shared.
    #[must_use]
    pub fn of_layers(&self, layers: &Range<usize>) -> Self {
        let mut own = self.clone();
        let outside = |index: &usize| !layers.contains(index);
        for index in (0..own.routers.len()).filter(outside) {
            own.routers[index] = None;
        }
        for index in (0..own.router_biases.len()).filter(outside) {
            own.router_biases[index] = None;
        }
        own
    }

    /// The bias of the router of the layer after `layer`.
    pub fn next_router_bias(&self, layer: LayerId) -> Option<VectorId> {
        self.router_biases.get(layer.index() + 1).copied().flatten()
    }

    /// Which router each layer has, if that was told.
    pub fn routers(&self) -> &[Option<MatrixId>] {
        &self.routers
    }

    /// The router of the layer after `layer`, when its choice is to be guessed.
    pub fn next_router(&self, layer: LayerId) -> Option<MatrixId> {
        self.guesses.as_ref()?;
        self.routers.get(layer.index() + 1).copied().flatten()
    }

    /// Room for a guess of `tokens` choices; [`Routing::record`] of the next layer compares with it.
    pub(crate) fn guess(
        &mut self,
        tokens: usize,
        experts: usize,
        k: usize,
    ) -> Option<&mut Guesses> {
        let guesses = self.guesses.as_mut()?;
        guesses.logits.resize(tokens * experts, 0.0);
        guesses.chosen.resize(tokens * k, 0);
        guesses.weights.resize(tokens * k, 0.0);
        Some(guesses)
    }

    /// Hears the chosen experts and their weights, `[tokens, k]` each, best first.
    pub fn record(&self, layer: LayerId, k: usize, chosen: &[u16], weights: &[f32]) {
        if let Some(heat) = &self.heat {
            heat.count(layer, chosen);
        }
        if let Some(recorder) = &self.recorder {
            recorder.add(layer, chosen, weights);
            // A layer without experts guesses nothing for the next.
            let before = layer.index().checked_sub(1);
            let guessed = before.is_some_and(|index| self.routers.get(index) != Some(&None));
            if let Some(guesses) = self.guesses.as_ref().filter(|_| guessed) {
                recorder.compare(layer, k, &guesses.chosen, chosen);
            }
        }
    }
}

/// The sum of four uniform numbers, scaled to mean 0 and variance 1: close to a normal one, for a fraction of its price
/// (ten thousand are needed per token).
fn nearly_normal(bits: u64) -> f32 {
    let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xffff).sum();
    // Each part has mean (2^16 - 1) / 2 and variance (2^32 - 1) / 12.
    (sum as f32 - 131_070.0) / 37_837.2
}

/// Choices of one layer: ids and weights, `[tokens, k]`.
type LayerChoices = (Vec<u16>, Vec<f32>);

/// How often the router of a layer, applied to the input of the layer before, chose the right experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recall {
    /// Tokens compared.
    pub tokens: u64,
    /// By true rank: the expert at this rank was among the guessed ones.
    pub found: Vec<u64>,
    /// By guessed rank: the guess at this rank was among the chosen ones.
    pub right: Vec<u64>,
}

impl Recall {
    fn compare(&mut self, guessed: &[u16], chosen: &[u16]) {
        self.tokens += 1;
        for (counts, experts, others) in
            [(&mut self.found, chosen, guessed), (&mut self.right, guessed, chosen)]
        {
            counts.resize(experts.len(), 0);
            for (count, expert) in counts.iter_mut().zip(experts) {
                *count += u64::from(others.contains(expert));
            }
        }
    }

    /// Adds what another layer counted.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        for (mine, theirs) in [(&mut self.found, &other.found), (&mut self.right, &other.right)] {
            mine.resize(theirs.len().max(mine.len()), 0);
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
    }

    /// Share of the chosen experts that were guessed.
    pub fn rate(&self) -> f64 {
        let asked = self.tokens * self.found.len() as u64;
        if asked == 0 { 0.0 } else { self.found.iter().sum::<u64>() as f64 / asked as f64 }
    }
}

/// What a [`Recorder`] has heard.
struct Recording {
    listening: bool,
    layers: Vec<LayerChoices>,
    /// By layer; the first is never guessed. `None` unless asked for.
    recalls: Option<Vec<Recall>>,
}

/// Collects choices, of one sequence after another.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Recording>>);

impl Recorder {
    /// A recorder for a model of `layers` layers.
    pub fn new(layers: usize) -> Self {
        let layers = vec![LayerChoices::default(); layers];
        Self(Arc::new(Mutex::new(Recording { listening: true, layers, recalls: None })))
    }

    /// Compares each choice with the guess one layer earlier, too.
    #[must_use]
    pub fn looking_ahead(self) -> Self {
        let mut recording = self.lock();
        recording.recalls = Some(vec![Recall::default(); recording.layers.len()]);
        drop(recording);
        self
    }

    /// Starts or stops listening, to leave prompts out of a recording.
    pub fn listen(&self, listening: bool) {
        self.lock().listening = listening;
    }

    /// By layer, how well each choice was prefetched; empty unless looking ahead.
    pub fn recalls(&self) -> Vec<Recall> {
        self.lock().recalls.clone().unwrap_or_default()
    }

    fn is_looking_ahead(&self) -> bool {
        self.lock().recalls.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // What a panic has cut short is no recording any more, and would be written as one.
        self.0.lock().expect("a choice was being recorded when another thread panicked")
    }

    fn add(&self, layer: LayerId, chosen: &[u16], weights: &[f32]) {
        let mut recording = self.lock();
        if !recording.listening {
            return;
        }
        if let Some((all_chosen, all_weights)) = recording.layers.get_mut(layer.index()) {
            all_chosen.extend_from_slice(chosen);
            all_weights.extend_from_slice(weights);
        }
    }

    fn compare(&self, layer: LayerId, k: usize, guessed: &[u16], chosen: &[u16]) {
        let mut recording = self.lock();
        if !recording.listening {
            return;
        }
        let recalls = recording.recalls.as_mut();
        if let Some(recall) = recalls.and_then(|recalls| recalls.get_mut(layer.index())) {
            for (guessed, chosen) in guessed.chunks_exact(k).zip(chosen.chunks_exact(k)) {
                recall.compare(guessed, chosen);
            }
        }
    }

    /// What was recorded, in token order; `prompt_tokens` of it belong to the prompt.
    pub fn trace(&self, experts: usize, top_k: usize, prompt_tokens: usize) -> Trace {
        let recording = self.lock();
        // Layers without experts choose nothing; before the first token none has chosen.
        let chose = |layer: &&LayerChoices| !layer.0.is_empty();
        let mut layers: Vec<_> = recording.layers.iter().filter(chose).collect();
        if layers.is_empty() {
            layers.extend(&recording.layers);
        }
        let mut trace = Trace::new(layers.len(), experts, top_k);
        let tokens = layers.iter().map(|(chosen, _)| chosen.len() / top_k).min().unwrap_or(0);
        for token in 0..tokens {
            let ranks = token * top_k..(token + 1) * top_k;
            for (chosen, weights) in &layers {
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
    fn heat_counts_each_choice_of_each_layer() {
        let heat = Heat::new(2, 4);
        let routing = Routing::default().counted_by(heat.clone());
        routing.record(LayerId(0), 2, &[0, 3, 3, 1], &[0.5; 4]);
        routing.record(LayerId(1), 2, &[2, 2], &[0.5; 2]);
        assert_eq!(heat.read(), [[1, 1, 0, 2], [0, 0, 2, 0]]);
    }

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

    /// The `count` best, best first.
    fn best(logits: &[f32], count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(count);
        order
    }

    #[test]
    fn synthetic_guesses_are_as_good_as_a_real_models_and_change_no_logits() {
        let (layers, experts, tokens, k) = (40, 256, 120, 8);
        let mut routing = Routing::calibrated(11, layers, experts);
        let mut unasked = Routing::calibrated(11, layers, experts);
        let (mut logits, mut same) = (vec![0.0; experts], vec![0.0; experts]);
        let (mut guess, mut again) = (vec![0.0; experts], vec![0.0; experts]);
        let mut right = vec![0; k];
        for _ in 0..tokens {
            for layer in (0..layers as u16).map(LayerId) {
                routing.override_logits(layer, experts, &mut logits);
                unasked.override_logits(layer, experts, &mut same);
                assert_eq!(logits, same, "the generator goes on as if no guess was made");
                routing.guess_logits(layer, experts, &logits, &mut guess);
                routing.guess_logits(layer, experts, &logits, &mut again);
                assert!(guess == again && logits == same);
                let chosen = best(&logits, k);
                for (count, expert) in right.iter_mut().zip(best(&guess, k)) {
                    *count += usize::from(chosen.contains(&expert));
                }
            }
        }
        let recall = right.iter().sum::<usize>() as f64 / (layers * tokens * k) as f64;
        assert!((recall - 0.807).abs() < 0.01, "recall {recall:.4}");
        assert!(right[0] > right[k - 1], "the best guesses are the surest: {right:?}");
    }

    #[test]
    fn noise_of_guesses_is_standard_and_differs_between_rows_and_layers() {
        let (mut sum, mut squares, count) = (0.0, 0.0, 100_000);
        for bits in (0..count).map(mix) {
            let value = f64::from(nearly_normal(bits));
            sum += value;
            squares += value * value;
        }
        let (mean, variance) = (sum / count as f64, squares / count as f64);
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let routing = Routing::calibrated(1, 2, 4);
        let logits = [1.0, 2.0, 3.0, 4.0, 1.5, 2.0, 3.0, 4.0];
        let (mut first, mut second) = ([0.0; 8], [0.0; 8]);
        routing.guess_logits(LayerId(0), 4, &logits, &mut first);
        routing.guess_logits(LayerId(1), 4, &logits, &mut second);
        let noise = |guess: &[f32], at: usize| guess[at] - logits[at];
        assert_ne!(noise(&first, 1), noise(&first, 5));
        assert_ne!(noise(&first, 1), noise(&second, 1));
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
                routing.record(LayerId(layer), 2, &chosen, &vec![weight; chosen.len()]);
            }
        }
        let trace = recorder.trace(32, 2, 2);
        assert_eq!(trace.ids, [1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16]);
        assert_eq!((trace.tokens(), trace.prompt_tokens), (3, 2));
        assert_eq!(trace.weights[8..], [0.25; 4]);
    }

    #[test]
    fn guesses_are_counted_by_rank_and_only_while_listening() {
        let recorder = Recorder::new(2).looking_ahead();
        let mut routing = Routing::default().recorded_by(recorder.clone());
        routing.set_routers(Vec::new(), Vec::new());
        let guess = routing.guess(2, 8, 3).unwrap();
        guess.chosen.copy_from_slice(&[4, 1, 2, 7, 6, 5]);
        let weights = [0.0; 6];
        // The first layer cannot be guessed.
        routing.record(LayerId(0), 3, &[4, 1, 2, 7, 6, 5], &weights);
        routing.record(LayerId(1), 3, &[1, 0, 4, 7, 6, 5], &weights);
        recorder.listen(false);
        routing.record(LayerId(1), 3, &[0, 0, 0, 0, 0, 0], &weights);
        let recalls = recorder.recalls();
        assert_eq!(recalls[0], Recall::default());
        assert_eq!(recalls[1], Recall { tokens: 2, found: vec![2, 1, 2], right: vec![2, 2, 1] });
        assert!((recalls[1].rate() - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(recorder.trace(8, 3, 0).tokens(), 2);
    }
}
