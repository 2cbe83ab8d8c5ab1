//! Steps of answers where an expert may be missing: recorded ahead as if all were there.
//!
//! The router of each layer looks its choice up and raises a flag with its layer where an expert has no slot. Behind
//! the flag run only the experts of that layer that have slots; all other kernels do nothing, so that what the step has
//! changed is what came before. The layers are handed over in *pieces*, each with a copy of the flag and of its choices
//! behind it, and the host goes on recording. Once a piece has arrived with the flag up, or is likely to, what is
//! recorded goes to the tape alone; when something asks for the step's result, the residency serves what layers missed
//! ([`Running`]).
//!
//! A flag stays up until its layer has been served: after a failed read nothing behind the layer has run, and the next
//! request for the step's result tries again. A step that nothing asks for is ended before the next one begins.

use std::collections::VecDeque;
use std::ops::Range;

use gpu::{Ask, Buffer, Gpu};
use store::{ExpertId, LayerId};

use super::experts::Routed;
use super::prefetch::Prefetch;
use super::requirements::Pieces;
use super::running::Running;
use super::slots::GpuSlots;
use super::{GpuBackend, GpuError, Register};
use crate::EngineError;
use crate::backend::Purpose;
use crate::residency::predictor::Tier;

/// Most tokens of a step.
pub(super) const STEP_TOKENS: usize = 8;
/// Words and bytes of what every kernel sees.
pub(super) const CONTROL_WORDS: usize = Gpu::CONTROL_WORDS as usize;
pub(super) const CONTROL_BYTES: u64 = 4 * Gpu::CONTROL_WORDS;
/// Pieces that are handed over before the first of them has arrived.
const AHEAD: usize = 2;

/// Bytes of buffers to be read: first byte and how many.
pub(super) type Places<'a> = [(&'a Buffer, u64, u64)];

/// What the flag says of a layer.
pub(super) fn flag_of(layer: LayerId) -> u32 {
    layer.index() as u32 + 1
}

/// Words of bytes that a device gave.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Layers on their way through the device.
pub(super) struct Piece {
    pub(super) ask: Ask,
    /// First layer, and the one after the last.
    first: usize,
    end: usize,
    /// Bytes of the guess of the layer `end`.
    guess: usize,
    /// The step's result is behind them.
    pub(super) last: bool,
}

/// The layer that missed an expert, and its choice.
pub(super) struct Miss {
    pub(super) layer: LayerId,
    pub(super) chosen: Vec<u32>,
    /// Experts of the layer that have slots have run behind its choice.
    pub(super) begun: bool,
    /// What was guessed of the next layer, if it was asked for: logits, `[tokens, experts]`.
    pub(super) guess: Vec<u8>,
}

/// What a piece says that has arrived.
pub(super) enum Arrived {
    /// Its layers have been computed; what was guessed of the layer behind them, if that was asked for.
    Computed(usize, Vec<u8>),
    /// The step has ended: bytes that were asked for behind it.
    Ended(Vec<u8>),
    /// A layer has missed an expert. Pieces behind it were empty.
    Missed(Miss),
    /// A token's router has given something that is no number.
    Broken(usize),
}

/// The step in progress, and how long its pieces are.
pub(super) struct Steps {
    pieces: Pieces,
    /// Layers that the device computes, by their numbers in the model.
    pub(super) layers: Range<usize>,
    /// A step runs whose end the host has not seen.
    open: bool,
    /// Nothing can be had of it any more.
    failed: bool,
    /// Pairs of a token and an expert in each layer.
    pub(super) pairs: usize,
    /// By layer from the first on: what is on the tape up to its choice, and up to its sum.
    pub(super) routed: Vec<usize>,
    pub(super) combined: Vec<usize>,
    /// By layer: experts that it chose.
    pub(super) chosen: Vec<Vec<u32>>,
    pub(super) flying: VecDeque<Piece>,
    /// First layer that no piece has.
    pub(super) first: usize,
    /// What is recorded goes to the tape alone; so much of it was handed over.
    pub(super) handed: Option<usize>,
    /// The layer that has to be served before anything goes on.
    pub(super) miss: Option<Miss>,
    /// By layer: whether it has experts.
    mixtures: Vec<bool>,
    /// Layers of a piece.
    pub(super) length: usize,
    /// Layers of this step that missed an expert.
    pub(super) missed: usize,
}

impl Steps {
    pub(super) fn new(pieces: Pieces, layers: Range<usize>, mixtures: Vec<bool>) -> Self {
        Self {
            pieces,
            open: false,
            failed: false,
            pairs: 0,
            routed: Vec::with_capacity(layers.len()),
            combined: Vec::with_capacity(layers.len()),
            chosen: vec![Vec::new(); layers.end],
            flying: VecDeque::new(),
            first: layers.start,
            handed: None,
            miss: None,
            mixtures,
            // Nothing has been used yet.
            length: 1,
            missed: 0,
            layers,
        }
    }

    /// The place of a layer among those of the device.
    pub(super) fn place(&self, layer: LayerId) -> usize {
        layer.index() - self.layers.start
    }

    /// True while the batch in progress is a step.
    pub(super) fn runs(&self) -> bool {
        self.open
    }

    /// The next dispatch is a layer's sum.
    pub(super) fn note_combine(&mut self, gpu: &Gpu) {
        if self.open {
            self.combined.push(gpu.taped());
        }
    }

    /// Pieces that may be on their way while the host goes on.
    pub(super) fn ahead(&self) -> usize {
        match self.pieces {
            Pieces::Layers(_) => AHEAD,
            // Every other layer misses at least.
            Pieces::Adaptive if self.length == 1 => 0,
            Pieces::Adaptive if self.length >= self.layers.len().min(Pieces::LIMIT) => usize::MAX,
            Pieces::Adaptive => AHEAD,
        }
    }

    fn begin(&mut self, pairs: usize) {
        self.open = true;
        self.failed = false;
        self.pairs = pairs;
        self.forget();
        self.missed = 0;
        if let Pieces::Layers(layers) = self.pieces {
            self.length = layers.max(1);
        }
    }

    /// Nothing can be missing: one piece has all layers.
    fn expect_all(&mut self) {
        if self.pieces == Pieces::Adaptive {
            self.length = self.layers.len();
        }
    }

    /// All layers have been computed.
    fn end(&mut self) {
        self.forget();
        if std::mem::take(&mut self.open) && self.pieces == Pieces::Adaptive {
            self.length = (self.layers.len() / (self.missed + 1)).clamp(1, Pieces::LIMIT);
        }
    }

    /// No layer waits for anything.
    fn forget(&mut self) {
        self.routed.clear();
        self.combined.clear();
        (self.first, self.handed, self.miss) = (self.layers.start, None, None);
    }

    /// Hands the layers before `end` over that no piece has yet, and asks for the control words, their choices, and
    /// what is behind the step.
    pub(super) fn hand_over(
        &mut self,
        gpu: &mut Gpu,
        ids: &Buffer,
        end: usize,
        (prefetch, behind): (Option<&Prefetch>, Option<&Places<'_>>),
    ) -> Result<(), GpuError> {
        let row = 4 * self.pairs as u64;
        let (first, count) = (self.first as u64, (end - self.first) as u64);
        let control = gpu.control().clone();
        let mut places = vec![(&control, 0, CONTROL_BYTES)];
        if count > 0 {
            places.push((ids, first * row, count * row));
        }
        // A layer without experts guesses nothing.
        let guesses = end > 0 && self.mixtures[end - 1];
        let guess = prefetch.filter(|_| guesses).map(Prefetch::place);
        places.extend(guess);
        places.extend_from_slice(behind.unwrap_or_default());
        let (ask, guess) = (gpu.ask(&places)?, guess.map_or(0, |(.., bytes)| bytes as usize));
        self.flying.push_back(Piece { ask, first: self.first, end, guess, last: behind.is_some() });
        self.first = end;
        Ok(())
    }

    /// Waits for the oldest piece, if there is one, and says what it says.
    pub(super) fn take_piece(&mut self, gpu: &mut Gpu) -> Result<Arrived, GpuError> {
        let Some(piece) = self.flying.pop_front() else {
            return Ok(Arrived::Computed(self.layers.end, Vec::new()));
        };
        let Piece { ask, first, end, guess, last } = piece;
        let mut bytes = gpu.answer(ask)?;
        let mut guesses = bytes.split_off(4 * (CONTROL_WORDS + (end - first) * self.pairs));
        let behind = guesses.split_off(guess);
        let words = words(&bytes);
        let (control, chosen) = words.split_at(CONTROL_WORDS);
        if let Some(token) = (control[1] as usize).checked_sub(1) {
            self.failed = true;
            return Ok(Arrived::Broken(token));
        }
        let raised = (control[0] as usize).checked_sub(1);
        for (layer, chosen) in (first..end).zip(chosen.chunks_exact(self.pairs)) {
            if raised == Some(layer) {
                std::mem::take(&mut self.flying)
                    .into_iter()
                    .for_each(|piece| gpu.forget(piece.ask));
                let (layer, chosen) = (LayerId(layer as u16), chosen.to_vec());
                let handed = *self.handed.get_or_insert(gpu.taped());
                gpu.tape_alone(true);
                let sum = self.combined.get(self.place(layer));
                let begun = sum.is_some_and(|&end| handed >= end);
                self.first = layer.index();
                // The layers behind it have not guessed.
                return Ok(Arrived::Missed(Miss { layer, chosen, begun, guess: guesses }));
            }
            self.chosen[layer] = match self.mixtures[layer] {
                true => chosen.to_vec(),
                false => Vec::new(),
            };
        }
        match raised {
            None if last => Ok(Arrived::Ended(behind)),
            None => Ok(Arrived::Computed(end, guesses)),
            Some(layer) => {
                let found = format!("a miss of layer {layer} among layers {first} to {end}");
                Err(GpuError::Refused(found))
            }
        }
    }
}

impl GpuBackend {
    /// The batch is known: it becomes a step if it is one of answers and an expert may be missing.
    pub(super) fn begin_step(&mut self, purpose: Purpose) -> Result<(), EngineError> {
        let few = self.tokens <= STEP_TOKENS && purpose == Purpose::Answers;
        if few && self.residency.can_move() {
            self.residency.begin_step()?;
            self.residency.tell_words(GpuSlots::follow);
            // Beside what `tell_batch` writes, so that both are handed over at once.
            self.residency.device_mut().write_table()?;
            if let Some(prefetch) = &mut self.prefetch {
                let (residency, slots) = (&self.residency, self.residency.device());
                prefetch.begin(self.tokens, |key| match residency.in_host(key) {
                    _ if slots.has(key) => Tier::Device,
                    true => Tier::Host,
                    false => Tier::Disk,
                });
            }
            self.steps.begin(self.tokens * self.options.top_k);
            let slots = self.residency.device_mut();
            match slots.finds_all() {
                true => self.steps.expect_all(),
                false => slots.gpu.begin_tape(),
            }
        }
        Ok(())
    }

    /// The choice of a layer is recorded: hands over what is due, as long as no layer has missed an expert.
    pub(super) fn step_routed(&mut self, layer: LayerId) -> Result<(), EngineError> {
        let (layer, steps) = (layer.index(), &mut self.steps);
        let gpu = &mut self.residency.device_mut().gpu;
        steps.routed.push(gpu.taped());
        if steps.handed.is_some() {
            return Ok(());
        }
        let last = layer + 1 == steps.layers.end;
        // What asks for the result takes the last layers along, where nothing has to be known before.
        if layer + 1 - steps.first >= steps.length && !(last && steps.ahead() > 0) {
            let prefetch = self.prefetch.as_ref();
            steps.hand_over(gpu, &self.mixture.ids, layer + 1, (prefetch, None))?;
            if steps.ahead() == 0 {
                // Every other layer misses at least: what is handed over now would be emptied.
                steps.handed = Some(gpu.taped());
                gpu.tape_alone(true);
                return Ok(());
            }
        }
        while let Some(piece) = steps.flying.front() {
            let waits = steps.flying.len() > steps.ahead();
            if !waits && !gpu.has_arrived(&piece.ask)? {
                break;
            }
            match steps.take_piece(gpu)? {
                Arrived::Computed(..) | Arrived::Ended(_) => {}
                Arrived::Broken(token) => return Err(self.not_finite(token)),
                Arrived::Missed(miss) => {
                    steps.miss = Some(miss);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Brings the batch to its end. `record` records what is to be read behind it. Gives the bytes of `places`.
    pub(super) fn finish(
        &mut self,
        record: &mut dyn FnMut(&mut Self) -> Result<(), EngineError>,
        places: &Places<'_>,
    ) -> Result<Vec<u8>, EngineError> {
        if !self.steps.open {
            record(self)?;
            let gpu = &mut self.residency.device_mut().gpu;
            let control = gpu.control().clone();
            let mut all = vec![(&control, 0, CONTROL_BYTES)];
            all.extend_from_slice(places);
            let asked = gpu.ask(&all)?;
            gpu.record_ahead(&asked)?;
            let mut bytes = gpu.answer(asked)?;
            let behind = bytes.split_off(CONTROL_BYTES as usize);
            self.check_finite(words(&bytes)[1])?;
            return Ok(behind);
        }
        let layers = self.residency.device_mut().gpu.taped();
        let done = record(self).and_then(|()| self.serve_step(places));
        let gpu = &mut self.residency.device_mut().gpu;
        match done {
            Ok(bytes) => {
                gpu.keep_tape(false);
                self.steps.end();
                Ok(bytes)
            }
            Err(error) => {
                // The next request records what is behind the step anew.
                gpu.cut_tape(layers);
                self.steps.handed = Some(self.steps.handed.unwrap_or(layers).min(layers));
                gpu.keep_tape(true);
                gpu.tape_alone(true);
                Err(error)
            }
        }
    }

    /// Has the residency serve the step until it has ended.
    fn serve_step(&mut self, places: &Places<'_>) -> Result<Vec<u8>, EngineError> {
        let routed = Routed {
            buffers: &self.mixture,
            normed: &self.registers[Register::Normed as usize],
            halves: None,
            tokens: self.tokens,
            top_k: self.options.top_k,
            experts: self.config.moe.experts,
        };
        let in_place = self.residency.device().finds_all();
        if in_place {
            // Nothing of the step will be missing: what it does not need is done while it runs.
            self.residency.device_mut().gpu.submit()?;
            self.residency.learn();
        }
        if let Some(replaced) = &mut self.replaced {
            replaced.draw_ahead();
        }
        let (slots, server) = self.residency.serving();
        slots.gpu.keep_tape(false);
        let mut running =
            Running::begin(&mut self.steps, slots, routed, self.prefetch.as_mut(), places)?;
        running.record_ahead()?;
        let served = server.serve(&mut running);
        let ended = running.end();
        served?;
        let bytes = ended.map_err(|token| self.not_finite(token))?;
        let slots = self.residency.device_mut();
        for (layer, chosen) in self.steps.chosen.iter().enumerate() {
            slots.note_used(LayerId(layer as u16), chosen);
        }
        let chosen = &self.steps.chosen;
        self.residency
            .end_step(|layer| chosen[layer].iter().map(|&expert| ExpertId(expert as u16)));
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.judge(self.residency.uses());
        }
        if !in_place {
            self.residency.learn();
        }
        Ok(bytes)
    }

    /// Ends a step that nothing has asked for, before anything else begins; one whose sequences are gone, or that has
    /// failed, is given up.
    ///
    /// # Errors
    /// As [`GpuBackend::finish`]: its sequences are undefined.
    pub(super) fn end_step(&mut self) -> Result<(), EngineError> {
        if !self.steps.open {
            return Ok(());
        }
        let wanted = self.spans.iter().any(|span| self.sequences.exists(span.sequence));
        let mut ended = Ok(());
        if wanted && !self.steps.failed && self.steps.combined.len() == self.steps.layers.len() {
            ended = self.finish(&mut |_| Ok(()), &[]).map(|_| ());
        }
        if self.steps.open {
            self.give_step_up();
        }
        ended
    }

    /// Forgets a step; its sequences are undefined.
    fn give_step_up(&mut self) {
        let gpu = &mut self.residency.device_mut().gpu;
        gpu.keep_tape(false);
        std::mem::take(&mut self.steps.flying).into_iter().for_each(|piece| gpu.forget(piece.ask));
        self.steps.open = false;
        self.steps.forget();
        gpu.clear_control();
    }
}
