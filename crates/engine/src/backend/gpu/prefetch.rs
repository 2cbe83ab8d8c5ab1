//! Next-layer prediction in a step: which records are copied or read before their layer asks for them.
//!
//! Before each router the next layer's router is applied to the same input. Where a piece comes back, the host ranks
//! what that gave for the layer behind it and asks for the best that have no slot: those in the host tier are copied to
//! scratch slots before the layer is handed over, those on disk are read while the device computes its mixer. The
//! layer's own routing decides as ever, so answers do not depend on guesses. How far down the ranking they are trusted
//! is the residency's ([`crate::residency::predictor`]), as on CUDA.

use std::time::Instant;

use gpu::op::{elementwise, plain, product};
use gpu::{Buffer, Gpu, GpuError, Trunk};
use store::cache::PrefetchCounters;
use store::{ExpertId, LayerId};

use super::requirements::Sizes;
use crate::model::router::Score;
use crate::residency::predictor::{Prediction, Predictor, Tier};
use crate::weights::{MatrixId, VectorId};

/// A layer's router, and the bias of its logits.
type Router = (MatrixId, Option<VectorId>);

/// What prediction needs on the device and what it has learned.
pub(super) struct Prefetch {
    predictor: Predictor,
    /// By layer, with their biases; known once a layer was computed.
    routers: Vec<Option<Router>>,
    /// What the next layer's router makes of a layer's input, `[tokens, experts]`.
    logits: Buffer,
    top_k: usize,
    experts: usize,
    tokens: usize,
    /// Where each record was when the step began.
    tiers: Vec<Tier>,
    /// By layer: what the step guessed, `[tokens, k]`, best first; empty where it was not looked at.
    guesses: Vec<Vec<u32>>,
    /// Records that were copied ahead in this step.
    ahead: Vec<u32>,
    started: Instant,
    copied: u64,
    used: u64,
}

impl Prefetch {
    pub(super) fn new(
        gpu: &mut Gpu,
        sizes: &Sizes,
        prediction: Prediction,
        (layers, experts, top_k): (usize, usize, usize),
    ) -> Result<Self, GpuError> {
        Ok(Self {
            predictor: Predictor::new(prediction, top_k),
            routers: vec![None; layers],
            logits: gpu.buffer("guesses", 4 * sizes.guesses as u64)?,
            top_k,
            experts,
            tokens: 0,
            tiers: Vec::new(),
            guesses: vec![Vec::new(); layers],
            ahead: Vec::new(),
            started: Instant::now(),
            copied: 0,
            used: 0,
        })
    }

    /// Remembers a layer's router.
    pub(super) fn note_router(&mut self, layer: LayerId, router: Router) {
        self.routers[layer.index()] = Some(router);
    }

    /// Applies the next layer's router to `input`, what a layer's own reads. What is ranked is what experts are chosen
    /// by; a softmax keeps the order of logits, but for its bias.
    pub(super) fn guess(
        &self,
        gpu: &mut Gpu,
        layer: LayerId,
        input: &Buffer,
        (trunk, vectors): (&Trunk, &[Buffer]),
        score: Score,
    ) -> Result<(), GpuError> {
        let (tokens, experts) = (self.tokens, self.experts);
        let Some(Some((next, bias))) = self.routers.get(layer.index() + 1) else { return Ok(()) };
        let (to, count) = (&self.logits, tokens * experts);
        product::launch(gpu, trunk.matrix(next.index()), input, to, tokens, false)?;
        if let Score::Sigmoid { .. } = score {
            elementwise::launch_sigmoid(gpu, to, count)?;
        }
        // A guess by roots is one by their logits: a bias of the choice would be too large or too small.
        let moved = !matches!(score, Score::BalancedSoftmax { .. } | Score::SqrtSoftplus { .. });
        if let Some(bias) = bias.filter(|_| moved) {
            let bias = &vectors[bias.index()];
            plain::launch_add_bias(gpu, (to, bias), (tokens, experts))?;
        }
        Ok(())
    }

    /// A step of `tokens` tokens begins; `tier` says where each record is.
    pub(super) fn begin(&mut self, tokens: usize, tier: impl Fn(u32) -> Tier) {
        self.tokens = tokens;
        self.started = Instant::now();
        self.ahead.clear();
        self.guesses.iter_mut().for_each(Vec::clear);
        self.tiers.clear();
        self.tiers.extend((0..(self.routers.len() * self.experts) as u32).map(tier));
    }

    /// What is read behind a piece: the guess of the layer behind the last that has run.
    pub(super) fn place(&self) -> (&Buffer, u64, u64) {
        (&self.logits, 0, 4 * (self.tokens * self.experts) as u64)
    }

    /// Ranks the guess of a layer, if that is one. Gives the records that are worth asking for, best first.
    pub(super) fn rank(&mut self, layer: usize, logits: &[u8]) -> Vec<u32> {
        if layer >= self.guesses.len() || logits.is_empty() {
            return Vec::new();
        }
        let logits = logits.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
        let logits: Vec<f32> = logits.collect();
        let depths = self.predictor.depths();
        let guesses = &mut self.guesses[layer];
        guesses.clear();
        for row in logits.chunks_exact(self.experts) {
            let mut order: Vec<u32> = (0..self.experts as u32).collect();
            let greater =
                |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
            order.select_nth_unstable_by(self.top_k - 1, greater);
            order.truncate(self.top_k);
            order.sort_unstable_by(greater);
            guesses.extend(order);
        }
        let mut wanted = Vec::new();
        for rank in 0..self.top_k {
            for token in guesses.chunks_exact(self.top_k) {
                let key = (layer * self.experts) as u32 + token[rank];
                let depth = match self.tiers[key as usize] {
                    Tier::Device => 0,
                    Tier::Host => depths.bus,
                    Tier::Disk => depths.disk,
                };
                if (rank as u32) < depth && !wanted.contains(&key) {
                    wanted.push(key);
                }
            }
        }
        wanted
    }

    /// A record was copied to the device before its layer has chosen.
    pub(super) fn note_copied(&mut self, key: u32) {
        self.ahead.push(key);
        self.copied += 1;
    }

    /// A step has ended well; `uses` has what each layer used, ascending, distinct.
    pub(super) fn judge(&mut self, uses: &[Vec<ExpertId>]) {
        let (tiers, experts) = (&self.tiers, self.experts);
        for (layer, (guesses, uses)) in self.guesses.iter().zip(uses).enumerate() {
            if !guesses.is_empty() {
                let tier = |expert: ExpertId| tiers[layer * experts + expert.index()];
                self.predictor.judge(self.tokens, guesses, uses, tier);
            }
        }
        for &key in &self.ahead {
            let (layer, expert) =
                (key as usize / experts, ExpertId((key as usize % experts) as u16));
            self.used += u64::from(uses[layer].binary_search(&expert).is_ok());
        }
        self.predictor.step_ended(self.tokens, self.started.elapsed());
    }

    /// Says what was guessed and copied; what was read from disk is not known here.
    pub(super) fn count(&self, counters: &mut PrefetchCounters) {
        (counters.guessed, counters.right) = self.predictor.counts();
        (counters.bus_copied, counters.bus_used) = (self.copied, self.used);
    }
}
