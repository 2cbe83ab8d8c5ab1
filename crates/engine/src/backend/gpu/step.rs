//! Steps of answers where an expert may be missing: recorded ahead as if all were there.
//!
//! The router of each layer looks its choice up and raises a flag with its layer where an expert has no slot. Behind
//! the flag run only the experts of that layer that have slots; all other kernels do nothing, so that what the step has
//! changed is what came before. The layers are handed over in *pieces*, each with a copy of the flag and of its choices
//! behind it, and the host goes on recording. When a piece arrives with the flag up, the host loads what that layer
//! missed, runs it, lowers the flag and hands over again what was recorded behind it, from the layer's sum on.
//!
//! A flag stays up until its layer has been served: after a failed read nothing behind the layer has run, and the next
//! request for the step's result tries again. A step that nothing asks for is ended before the next one begins.

use std::collections::VecDeque;

use gpu::{Ask, Buffer, Gpu};
use store::LayerId;

use super::requirements::Pieces;
use super::{Cancel, GpuBackend, GpuError};
use crate::EngineError;
use crate::backend::{Purpose, Uncancelled};

/// Most tokens of a step.
pub(super) const STEP_TOKENS: usize = 8;
/// Words and bytes of what every kernel sees.
pub(super) const CONTROL_WORDS: usize = Gpu::CONTROL_WORDS as usize;
pub(super) const CONTROL_BYTES: u64 = 4 * Gpu::CONTROL_WORDS;
/// Pieces that are handed over before the first of them has arrived.
const AHEAD: usize = 2;

/// What the flag says of a layer.
pub(super) fn flag_of(layer: LayerId) -> u32 {
    layer.index() as u32 + 1
}

/// Words of bytes that a device gave.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Layers on their way through the device.
struct Piece {
    ask: Ask,
    /// First layer, and the one after the last.
    first: usize,
    end: usize,
}

/// The layer that missed an expert, and its choice.
struct Miss {
    layer: usize,
    chosen: Vec<u32>,
}

/// The step in progress, and how long its pieces are.
pub(super) struct Steps {
    pieces: Pieces,
    layers: usize,
    /// A step runs whose end the host has not seen.
    open: bool,
    /// Serving it has failed.
    failed: bool,
    /// By layer: dispatches on the tape up to its choice, and up to its sum.
    routed: Vec<usize>,
    combined: Vec<usize>,
    flying: VecDeque<Piece>,
    /// First layer that no piece has.
    first: usize,
    /// Layers of a piece.
    length: usize,
    /// Layers of this step that missed an expert.
    missed: usize,
}

impl Steps {
    pub(super) fn new(pieces: Pieces, layers: usize) -> Self {
        Self {
            pieces,
            layers,
            open: false,
            failed: false,
            routed: Vec::with_capacity(layers),
            combined: Vec::with_capacity(layers),
            flying: VecDeque::new(),
            first: 0,
            // Nothing has a slot yet.
            length: 1,
            missed: 0,
        }
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
    fn ahead(&self) -> usize {
        match self.pieces {
            Pieces::Layers(_) => AHEAD,
            // Every other layer misses at least: what is recorded ahead would be emptied.
            Pieces::Adaptive if self.length == 1 => 0,
            Pieces::Adaptive if self.length >= self.layers.min(Pieces::LIMIT) => usize::MAX,
            Pieces::Adaptive => AHEAD,
        }
    }

    fn begin(&mut self) {
        self.open = true;
        self.failed = false;
        self.forget();
        self.missed = 0;
        if let Pieces::Layers(layers) = self.pieces {
            self.length = layers.max(1);
        }
    }

    /// All layers have been computed.
    fn end(&mut self) {
        self.forget();
        if std::mem::take(&mut self.open) && self.pieces == Pieces::Adaptive {
            self.length = (self.layers / (self.missed + 1)).clamp(1, Pieces::LIMIT);
        }
    }

    /// No layer waits for anything.
    fn forget(&mut self) {
        self.routed.clear();
        self.combined.clear();
        self.first = 0;
    }
}

impl GpuBackend {
    /// The batch has been told: it becomes a step if it is one of answers and an expert may be missing.
    pub(super) fn begin_step(&mut self, purpose: Purpose) {
        let few = self.tokens <= STEP_TOKENS && purpose == Purpose::Answers;
        if few && !self.experts.holds_all() {
            self.steps.begin();
            self.gpu.begin_tape();
        }
    }

    /// The choice of a layer is recorded. True if the layer has missed an expert and all its experts have run since.
    pub(super) fn step_routed(
        &mut self,
        layer: LayerId,
        cancel: &dyn Cancel,
    ) -> Result<bool, EngineError> {
        let layer = layer.index();
        self.steps.routed.push(self.gpu.taped());
        let last = layer + 1 == self.steps.layers;
        // What asks for the result takes the last layers along, where nothing has to be known before.
        if layer + 1 - self.steps.first >= self.steps.length && !(last && self.steps.ahead() > 0) {
            self.end_piece(layer + 1)?;
        }
        let mut served = None;
        while let Some(piece) = self.steps.flying.front() {
            let waits = self.steps.flying.len() > self.steps.ahead();
            if !waits && !self.gpu.has_arrived(&piece.ask)? {
                break;
            }
            if let Some(miss) = self.take_piece()? {
                served = Some(miss.layer);
                self.serve(&miss, cancel)?;
            }
        }
        Ok(served == Some(layer))
    }

    /// Hands the layers before `end` over that no piece has yet.
    fn end_piece(&mut self, end: usize) -> Result<(), EngineError> {
        let first = self.steps.first;
        let asked = self.ask_step(end, &[])?;
        self.steps.flying.push_back(Piece { ask: asked, first, end });
        self.steps.first = end;
        Ok(())
    }

    /// Asks for the control words, the choices of the step's layers before `end` that no piece has, and more.
    fn ask_step(&mut self, end: usize, more: &[(&Buffer, u64, u64)]) -> Result<Ask, EngineError> {
        let row = 4 * (self.tokens * self.options.top_k) as u64;
        let (first, count) = (self.steps.first as u64, (end - self.steps.first) as u64);
        debug_assert!(self.steps.open || count == 0, "choices of a step that has ended");
        let control = self.gpu.control().clone();
        let mut places = vec![(&control, 0, CONTROL_BYTES)];
        if count > 0 {
            places.push((&self.mixture.ids, first * row, count * row));
        }
        places.extend_from_slice(more);
        Ok(self.gpu.ask(&places)?)
    }

    /// Waits for the oldest piece; what it missed, if it did. Pieces behind a miss were empty.
    fn take_piece(&mut self) -> Result<Option<Miss>, EngineError> {
        let Some(piece) = self.steps.flying.pop_front() else { return Ok(None) };
        let words = words(&self.gpu.answer(piece.ask)?);
        let miss = self.judge(&words, piece.first, piece.end)?;
        if miss.is_some() {
            for empty in std::mem::take(&mut self.steps.flying) {
                self.gpu.forget(empty.ask);
            }
        }
        Ok(miss)
    }

    /// What the control words and the choices of some layers say: notes what was used, and gives the miss.
    fn judge(
        &mut self,
        words: &[u32],
        first: usize,
        end: usize,
    ) -> Result<Option<Miss>, EngineError> {
        let (control, chosen) = words.split_at(CONTROL_WORDS);
        // It is told once.
        self.steps.failed |= control[1] != 0;
        self.check_finite(control[1])?;
        let raised = (control[0] as usize).checked_sub(1);
        let pairs = self.tokens * self.options.top_k;
        for (layer, chosen) in (first..end).zip(chosen.chunks_exact(pairs)) {
            if raised == Some(layer) {
                return Ok(Some(Miss { layer, chosen: chosen.to_vec() }));
            }
            let used = self.experts.note_used(LayerId(layer as u16), chosen);
            self.count(used);
        }
        match raised {
            None => Ok(None),
            Some(layer) => {
                let found = format!("a miss of layer {layer} among layers {first} to {end}");
                Err(GpuError::Refused(found).into())
            }
        }
    }

    /// Loads what a layer missed, runs it, lowers the flag and hands over again what was recorded from the layer's sum
    /// on.
    fn serve(&mut self, miss: &Miss, cancel: &dyn Cancel) -> Result<(), EngineError> {
        self.gpu.keep_tape(false);
        let layer = LayerId(miss.layer as u16);
        let combined = self.steps.combined.get(miss.layer).copied();
        // Nothing of the layer ran behind its choice if nothing was recorded there.
        let all = self.steps.failed || combined.is_none();
        self.steps.failed = true;
        // Should it fail, the next request finds the flag up and this choice.
        self.steps.first = miss.layer;
        self.run_chosen(layer, &miss.chosen, all, cancel)?;
        self.gpu.clear_control();
        self.steps.failed = false;
        self.steps.missed += 1;
        self.steps.first = miss.layer + 1;
        if let Some(from) = combined {
            self.repeat(from)?;
        }
        self.gpu.keep_tape(true);
        Ok(())
    }

    /// Hands the tape over from a dispatch on, in pieces as before.
    fn repeat(&mut self, mut from: usize) -> Result<(), EngineError> {
        let end = self.gpu.taped();
        while self.steps.first + self.steps.length <= self.steps.routed.len() {
            let last = self.steps.first + self.steps.length;
            if last == self.steps.layers && self.steps.ahead() > 0 {
                break;
            }
            let to = self.steps.routed[last - 1];
            self.gpu.replay(from..to)?;
            from = to;
            self.end_piece(last)?;
        }
        Ok(self.gpu.replay(from..end)?)
    }

    /// Brings the batch to its end. `record` records what is to be read behind it; it is recorded again when it came
    /// behind a raised flag. Gives the bytes of `places`.
    pub(super) fn finish(
        &mut self,
        record: &mut dyn FnMut(&mut Self) -> Result<(), EngineError>,
        places: &[(&Buffer, u64, u64)],
    ) -> Result<Vec<u8>, EngineError> {
        self.gpu.keep_tape(false);
        loop {
            record(self)?;
            let (first, end) = (self.steps.first, self.steps.routed.len());
            let asked = self.ask_step(end, places)?;
            // The one wait of a step that misses nothing: all pieces have arrived then.
            self.gpu.wait_for(&asked)?;
            let mut miss = None;
            while miss.is_none() && !self.steps.flying.is_empty() {
                miss = self.take_piece()?;
            }
            if miss.is_some() {
                self.gpu.forget(asked);
            } else {
                let mut bytes = self.gpu.answer(asked)?;
                let known = CONTROL_WORDS + (end - first) * self.tokens * self.options.top_k;
                miss = self.judge(&words(&bytes[..4 * known]), first, end)?;
                if miss.is_none() {
                    self.steps.end();
                    return Ok(bytes.split_off(4 * known));
                }
            }
            if let Some(miss) = miss {
                self.serve(&miss, &Uncancelled)?;
                self.gpu.keep_tape(false);
            }
        }
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
        if wanted && !self.steps.failed && self.steps.combined.len() == self.steps.layers {
            let ended = self.finish(&mut |_| Ok(()), &[]);
            if ended.is_ok() {
                return Ok(());
            }
            self.give_step_up();
            return ended.map(|_| ());
        }
        self.give_step_up();
        Ok(())
    }

    /// Forgets a step; its sequences are undefined.
    fn give_step_up(&mut self) {
        self.gpu.keep_tape(false);
        for piece in std::mem::take(&mut self.steps.flying) {
            self.gpu.forget(piece.ask);
        }
        self.steps.open = false;
        self.steps.forget();
        self.gpu.clear_control();
    }
}
