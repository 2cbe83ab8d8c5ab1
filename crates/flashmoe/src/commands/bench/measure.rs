//! One run of one test, and what it cost. All counts are those of the store.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::EngineError;
use engine::backend::{Run, SequenceId, Snapshot};
use engine::engine::Engine;
use engine::model::StageTimes;
use store::cache::StoreCounters;
use text::sampling::Xoshiro256;

use crate::commands::fingerprint::Fingerprint;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::plan::Plan;
use crate::plan::load::Loaded;
use crate::plan::machine::{ProcessMemory, cached_bytes};
use crate::progress::{Progress, Unit};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Token by token, or all at once.
    pub(super) decode: bool,
    pub(super) tokens: usize,
    /// Tokens in the context before.
    pub(super) depth: usize,
}

impl Test {
    /// As llama-bench calls it: `pp512`, `tg128 @ d4096`.
    pub(super) fn name(&self, cold: bool) -> String {
        let kind = if self.decode { "tg" } else { "pp" };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        format!("{kind}{}{depth}{}", self.tokens, if cold { " cold" } else { "" })
    }
}

/// What a run took.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) tokens: usize,
    pub(super) time: Duration,
    /// Time until the first logits were there; prefill only.
    pub(super) first: Option<Duration>,
    pub(super) counters: StoreCounters,
    pub(super) stages: StageTimes,
    /// Of each of several stages, in this process or another.
    pub(super) of_stages: Vec<OfStage>,
    /// Passes through the model.
    pub(super) passes: usize,
    /// Positions in the key-value cache that all tokens together attended to.
    pub(super) attended: u64,
    /// Most memory that the process held since it was loaded.
    pub(super) peak: u64,
    /// Page cache of the machine, or of our control group: growth during the run.
    pub(super) cache_growth: i64,
    /// Of the logits looked at.
    pub(super) check: Fingerprint,
}

impl Sample {
    /// Tokens per second.
    pub(super) fn rate(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// What a stage has counted.
#[derive(Clone, Debug)]
pub(super) struct OfStage {
    pub(super) layers: Range<usize>,
    pub(super) experts: StoreCounters,
    /// The time that it waited for its neighbours.
    pub(super) waited: Duration,
}

/// Runs tests on a loaded model.
pub(super) struct Bench<'a> {
    loaded: &'a mut Loaded,
    interrupt: &'a Interrupt,
    vocabulary: u64,
    chunk: usize,
    seed: u64,
    /// Shares of drafts that are right, by their place in a round; empty for single steps.
    accept: Vec<f64>,
    /// A context that has been computed: tests at its depth begin there, deeper ones go on from there.
    context: Option<Snapshot>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        plan: &Plan,
        loaded: &'a mut Loaded,
        interrupt: &'a Interrupt,
        seed: u64,
        accept: &[f64],
    ) -> Self {
        let (vocabulary, chunk) = (plan.config.vocabulary as u64, plan.backend.batch_tokens);
        let accept = accept.to_vec();
        Self { loaded, interrupt, vocabulary, chunk, seed, accept, context: None }
    }

    /// Runs a test; `number` decides its tokens.
    pub(super) fn run(&mut self, test: &Test, number: u64) -> Result<Sample> {
        let sequence = self.loaded.engine.create_sequence().map_err(Failure::engine)?;
        let sample = self.run_in(sequence, test, number);
        self.loaded.engine.drop_sequence(sequence);
        Ok(sample.map_err(Failure::engine)?)
    }

    fn run_in(
        &mut self,
        sequence: SequenceId,
        test: &Test,
        number: u64,
    ) -> Result<Sample, EngineError> {
        let kind = ((test.depth as u64) << 32) | ((test.tokens as u64) << 1) | test.decode as u64;
        let stream = Fingerprint::START.word(number).word(kind);
        let tokens = self.tokens(stream, test.tokens);
        self.fill(sequence, test.depth)?;
        let before = self.loaded.engine.counters();
        let stages = self.loaded.engine.stage_times();
        let of_stages = self.of_stages();
        let cached = cached_bytes();
        let started = Instant::now();
        let (check, passes) = if test.decode {
            self.decode(sequence, &tokens)?
        } else {
            let passes = self.prefill(sequence, "prefill", &tokens)?;
            // Chunks are cut at multiples of their length: the last one began there, or at the depth.
            let last = test.depth + tokens.len() - 1;
            let began = test.depth.max(last / self.chunk * self.chunk);
            let engine = &mut self.loaded.engine;
            (Fingerprint::START.floats(engine.logits(&[last - began])?), passes)
        };
        let time = started.elapsed();
        let positions = test.depth as u64..(test.depth + test.tokens) as u64;
        Ok(Sample {
            tokens: test.tokens,
            time,
            first: (!test.decode).then_some(time),
            counters: self.loaded.engine.counters().since(&before),
            stages: self.loaded.engine.stage_times().since(stages),
            of_stages: {
                let each = self.of_stages().into_iter().zip(of_stages);
                each.map(|(it, was)| OfStage {
                    layers: it.layers,
                    experts: it.experts.since(&was.experts),
                    waited: it.waited - was.waited,
                })
                .collect()
            },
            passes,
            attended: if test.decode { positions.sum() } else { positions.end * passes as u64 },
            peak: ProcessMemory::read().peak,
            cache_growth: cached_bytes() as i64 - cached as i64,
            check,
        })
    }

    /// What each of several stages has counted.
    fn of_stages(&self) -> Vec<OfStage> {
        let stages = self.loaded.engine.stages();
        let work = stages.work_by_stage().into_iter().map(|work| work.waited);
        let each = stages.ranges().zip(stages.counters_by_stage()).zip(work);
        each.map(|((layers, experts), waited)| OfStage { layers, experts, waited }).collect()
    }

    /// Random tokens that `stream` decides.
    fn tokens(&self, stream: Fingerprint, count: usize) -> Vec<u32> {
        let mut state = self.seed ^ stream.bits();
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % self.vocabulary) as u32
        };
        (0..count).map(next).collect()
    }

    /// Brings an empty sequence to `depth`. The same context serves every test, so it is computed once: what has been
    /// computed is taken from the snapshot, and only what is deeper is added.
    fn fill(&mut self, sequence: SequenceId, depth: usize) -> Result<(), EngineError> {
        if depth == 0 {
            return Ok(());
        }
        let kept = self.context.take().filter(|kept| kept.length() <= depth);
        let done = kept.as_ref().map_or(0, Snapshot::length);
        if let Some(kept) = &kept {
            self.loaded.engine.backend().restore(sequence, kept)?;
        }
        if done < depth {
            // Dropped before the next is taken: there is room for one.
            drop(kept);
            let context = self.tokens(Fingerprint::START, depth);
            self.prefill(sequence, "context", &context[done..])?;
            self.context = Some(self.loaded.engine.backend().snapshot(sequence, None)?);
        } else {
            self.context = kept;
        }
        Ok(())
    }

    /// Feeds given tokens one by one, or in rounds, looking at the logits of each as an answer would. Gives their hash
    /// and the number of steps.
    fn decode(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
    ) -> Result<(Fingerprint, usize), EngineError> {
        if !self.accept.is_empty() {
            return self.decode_rounds(sequence, tokens);
        }
        let engine = &mut self.loaded.engine;
        let mut check = Fingerprint::START;
        for &token in tokens {
            engine.forward(&[Run { sequence, tokens: &[token] }], self.interrupt.flag())?;
            // What an answer would do: where the device chooses, only the token crosses the bus.
            check = match engine.most_likely(0) {
                Some(token) => check.word(token?.into()),
                None => check.floats(engine.logits(&[0])?),
            };
        }
        Ok((check, tokens.len()))
    }

    /// As [`Bench::decode`], with drafts that are right as often as was asked for. Those of a head are made for their
    /// time alone.
    fn decode_rounds(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
    ) -> Result<(Fingerprint, usize), EngineError> {
        let (mut check, mut rounds, mut done) = (Fingerprint::START, 0, 0);
        let mut random = Xoshiro256::new(self.seed ^ check.bits());
        while done < tokens.len() {
            let drafts = self.accept.len().min(tokens.len() - done - 1);
            let right = |rate: &&f64| ((random.next_u64() >> 11) as f64) < **rate * 2f64.powi(53);
            let kept = 1 + self.accept[..drafts].iter().take_while(right).count();
            let mut run = tokens[done..=done + drafts].to_vec();
            for wrong in &mut run[kept..] {
                *wrong = (*wrong + 1) % self.vocabulary as u32;
            }
            let engine = &mut self.loaded.engine;
            if engine.config().head && drafts > 0 {
                let mut drafted = Vec::with_capacity(drafts);
                engine.backend().draft(sequence, tokens[done], drafts, &mut drafted);
            }
            engine.step(&[Run { sequence, tokens: &run }], self.interrupt.flag())?;
            // Rows are looked at in order until one differs from its draft, as an answer would.
            for row in 0..kept {
                check = match engine.most_likely(row) {
                    Some(token) => check.word(token?.into()),
                    None => check.floats(engine.logits(&[row])?),
                };
            }
            if kept < run.len() {
                engine.keep_first(sequence, kept)?;
            }
            done += kept;
            rounds += 1;
        }
        Ok((check, rounds))
    }

    /// Gives the number of chunks.
    fn prefill(
        &mut self,
        sequence: SequenceId,
        what: &str,
        tokens: &[u32],
    ) -> Result<usize, EngineError> {
        if tokens.is_empty() {
            return Ok(0);
        }
        let mut bar = Progress::new(what, Unit::Tokens, tokens.len() as f64);
        let mut chunks = 0;
        let engine: &mut Engine = &mut self.loaded.engine;
        let result = engine.prefill(
            sequence,
            tokens,
            self.interrupt.flag(),
            &mut |progress| bar.set(progress.tokens),
            &mut |_, _, _| {
                chunks += 1;
                Ok(())
            },
        );
        bar.finish();
        result.map(|()| chunks)
    }
}
