//! Steps of a few tokens: capture once, replay, serve what is missing, await the end.

use cuda::launch::{self, ExpertStep, FROM_COPY, Routing, SharedExpert, StepInput};
use cuda::{Attended, CudaError, Device, Event, Graph, PinnedBuffer, Span};
use store::cache::Held;
use store::{ExpertId, LayerId};

use super::buffers::{Floats, Sizes};
use super::fuse::FusedShared;
use super::prefetch::Prefetch;
use super::slots::DeviceSlots;
use super::{CudaBackend, Mode, Register, STEP_TOKENS, protocol};
use crate::EngineError;
use crate::model::mixture::Mixture;
use crate::residency::predictor::Tier;
use crate::residency::{Found, Request, RunningStep};
use crate::weights::{MatrixId, VectorId};

/// Graphs and the state of the step that runs.
pub(super) struct Steps {
    /// By number of tokens.
    graphs: Vec<Option<Graph>>,
    /// Norm and matrix of the output head, once logits were asked for.
    head: Option<(Option<VectorId>, MatrixId)>,
    done: Event,
    /// A step runs whose end was not awaited.
    running: bool,
    /// What a step has met that was awaited before anything was asked of it.
    pub(super) failed: Option<EngineError>,
    /// Kept while kernels of the batch may wait for the host.
    pub(super) attended: Option<Attended>,
    /// Work of a batch was queued and its end was not awaited: if the next batch begins so, this one was given up.
    pub(super) unended: bool,
    /// The rows for which the last step computed logits, all of its tokens or none.
    head_rows: usize,
    /// Next word of the request ring.
    pub(super) taken: usize,
    /// Replaced logits of the next step lie in this half of the pinned buffer, for this many tokens.
    prepared: Option<(usize, usize)>,
    half: usize,
    scratch: Vec<f32>,
    /// The row of logits that was ranked last.
    pub(super) ranked_place: usize,
    /// Tokens of a prompt's batch after which the next ones are drawn one by one: their rows of logits are computed
    /// together, with the first that is asked for.
    drawn: Vec<usize>,
    /// The rows of `drawn` are there.
    drawn_done: bool,
}

impl Steps {
    pub(super) fn new(device: &Device, sizes: &Sizes) -> Result<Self, CudaError> {
        Ok(Self {
            graphs: (0..=STEP_TOKENS).map(|_| None).collect(),
            head: None,
            done: Event::new(device)?,
            running: false,
            failed: None,
            attended: None,
            unended: false,
            head_rows: 0,
            taken: 0,
            prepared: None,
            half: 0,
            scratch: vec![0.0; STEP_TOKENS * sizes.experts],
            ranked_place: 0,
            drawn: Vec::new(),
            drawn_done: false,
        })
    }

    /// Next tokens will be drawn after each of these of the batch.
    pub(super) fn expect_rows(&mut self, rows: &[usize]) {
        self.drawn = rows.to_vec();
        self.drawn_done = false;
    }

    /// The replaced logits that were drawn for the next step are gone.
    pub(super) fn forget_prepared(&mut self) {
        self.prepared = None;
    }

    /// A step was set going, and its end was not awaited.
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// Work of a batch is under way that nothing has awaited.
    pub(super) fn is_under_way(&self) -> bool {
        self.running || self.unended
    }

    /// The row of logits of `token` when the running step computes it.
    pub(super) fn coming_row(&self, token: usize) -> Option<usize> {
        (self.running && token < self.head_rows).then_some(token)
    }
}

/// The ring and the answers of a running step.
struct Port<'a> {
    ring: &'a PinnedBuffer<u64>,
    answers: &'a PinnedBuffer<u64>,
    done: &'a Event,
    taken: &'a mut usize,
    prefetch: Option<&'a mut Prefetch>,
    slots: &'a DeviceSlots,
    /// A copy that could not be begun.
    failure: Option<CudaError>,
}

impl RunningStep for Port<'_> {
    fn take_request(&mut self) -> Option<Request> {
        if let Some(Err(error)) = self.prefetch.as_mut().map(|prefetch| prefetch.advance()) {
            self.failure.get_or_insert(error);
        }
        protocol::request(protocol::take_request(self.ring.words(), self.taken))
    }

    fn copy_ahead(&mut self, layer: LayerId, key: u32, held: &Held) {
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.want(layer, key, self.slots.source(held));
        }
    }

    fn answer(&mut self, key: u32, found: Option<Found<'_>>) {
        protocol::answer(self.answers.words(), key, found.map(|found| found.address));
    }

    fn is_done(&mut self) -> Result<bool, EngineError> {
        match self.failure.take() {
            Some(error) => Err(error.into()),
            None => Ok(self.done.has_happened()?),
        }
    }
}

impl Drop for CudaBackend {
    /// A step may still wait for records that will not come any more: streams wait for it when they end.
    fn drop(&mut self) {
        protocol::give_up(self.buffers.pinned.status.words());
    }
}

impl CudaBackend {
    /// The batch's inputs are in pinned memory: decides how its operations are carried out.
    pub(super) fn begin_step(&mut self) -> Result<(), EngineError> {
        self.mode = Mode::Eager;
        self.steps.head_rows = 0;
        self.steps.drawn.clear();
        self.steps.unended = true;
        if !self.single {
            return self.upload_table();
        }
        self.experts.residency.begin_step()?;
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.begin(&self.stream)?;
        }
        self.upload_table()?;
        if self.routing.replaces() {
            let half = match self.steps.prepared.take() {
                Some((half, tokens)) if tokens == self.tokens => half,
                _ => self.prepare_logits(),
            };
            let values = self.sizes.layers * self.tokens * self.sizes.experts;
            let start = half * self.sizes.layers * STEP_TOKENS * self.sizes.experts;
            let from = self.buffers.pinned.replaced.span(start, values);
            self.stream.copy(from, self.buffers.replaced.part(0, values))?;
            if let Some(prefetch) = &self.prefetch {
                prefetch.upload_replaced(&self.stream, half, values)?;
            }
        }
        if self.steps.graphs[self.tokens].is_some() {
            self.mode = Mode::Replay;
        } else if self.steps.head.is_some() || !self.sizes.ends() {
            self.mode = Mode::Due;
        }
        Ok(())
    }

    /// The first operation of the batch follows: records it and those behind it, where they are to be. Not earlier:
    /// until then other stages of the model begin theirs, with calls that no thread may make while it records, or
    /// while kernels of a step that is not recorded may wait.
    pub(super) fn begin_recording(&mut self) {
        if self.mode == Mode::Eager && self.single {
            self.attend();
        }
        if self.mode == Mode::Due && self.failure.is_none() {
            match self.stream.begin_capture() {
                Ok(()) => self.mode = Mode::Capture,
                Err(error) => self.failure = Some(error),
            }
        }
    }

    pub(super) fn upload_table(&mut self) -> Result<(), EngineError> {
        if let Some(words) = self.experts.residency.changed_words() {
            let count = words.len();
            self.buffers.pinned.table.hand_over(0, words.iter().copied());
            let from = self.buffers.pinned.table.span(0, count);
            self.stream.copy(from, self.buffers.table.span(0, count))?;
        }
        Ok(())
    }

    /// The table's row of a layer.
    pub(super) fn table_row(&self, layer: LayerId) -> Span<u64> {
        let experts = self.sizes.experts;
        self.buffers.table.span(layer.index() * experts * 8, experts)
    }

    /// Draws the replaced logits of a step of the batch's size into the next half of the pinned buffer.
    fn prepare_logits(&mut self) -> usize {
        self.steps.half ^= 1;
        let half = self.steps.half;
        let row = self.tokens * self.sizes.experts;
        let mut at = half * self.sizes.layers * STEP_TOKENS * self.sizes.experts;
        at += self.sizes.computed.start * row;
        // Each layer draws by itself: those of other devices are drawn there.
        for layer in self.sizes.computed.clone() {
            let logits = &mut self.steps.scratch[..row];
            self.routing.override_logits(LayerId(layer as u16), self.sizes.experts, logits);
            // Handed over by the copy that `begin_step` queues; until then no work reads this half.
            self.buffers.pinned.replaced.hand_over(at, logits.iter().copied());
            if let Some(prefetch) = &mut self.prefetch {
                prefetch.prepare_replaced(&self.routing, LayerId(layer as u16), half, logits);
            }
            at += row;
        }
        half
    }

    /// A mixture of a step, of `Normed` or with a norm of its own.
    pub(super) fn step_mixture(
        &mut self,
        layer: LayerId,
        norm: Option<(Option<VectorId>, FusedShared)>,
        mixture: &Mixture,
    ) -> Result<(), EngineError> {
        self.run(|this| {
            // Before the router, so that nothing lies between routing and the experts.
            let out = this.mixture_output(mixture)?;
            this.launch_mixture(layer, norm, mixture, out)?;
            this.give_output(mixture, out)
        });
        self.failure.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Adds a mixture to `out`.
    pub(super) fn launch_mixture(
        &self,
        layer: LayerId,
        norm: Option<(Option<VectorId>, FusedShared)>,
        mixture: &Mixture,
        out: Span<f32>,
    ) -> Result<(), CudaError> {
        let (tokens, k, experts) = (self.tokens, self.options.top_k, self.sizes.experts);
        let (buffers, pairs) = (&self.buffers, self.tokens * self.options.top_k);
        let normed = self.register(Register::Normed);
        let shared = mixture.shared.as_ref().map(|shared| SharedExpert {
            gate: self.matrix(shared.gate),
            up: self.matrix(shared.up),
            down: self.matrix(shared.down),
            factor: self.shared_factor(),
            inner: buffers.shared_gate.part(0, tokens * self.sizes.shared),
        });
        if let Some((norm, how)) = norm {
            self.fused_router(layer, norm, mixture, shared.as_ref(), how)?;
        } else {
            let mut jobs = self.router_products(mixture);
            jobs.extend(self.guess_product(layer));
            self.products(self.register(mixture.router_input), &jobs, false)?;
        }
        self.add_router_biases(layer, mixture)?;
        let (route, within) = self.step_routing(layer, norm.is_some(), mixture)?;
        let step = ExpertStep {
            x: normed,
            chosen: route.chosen,
            weights: route.weights,
            addresses: route.addresses,
            answers: buffers.pinned.answers.span(0, self.sizes.layers * experts),
            status: route.status,
            inner: buffers.pair_gate.part(0, pairs * self.sizes.inner),
            out,
            copies: route.copies,
            ended: route.guess.map(|guess| guess.ended),
            first_key: route.first_key,
            k,
        };
        if let Some((norm, how)) = norm {
            let route = within.then_some(&route);
            return self.fused_experts(layer, (norm, how), &step, shared.as_ref(), route);
        }
        let shapes = self.experts.shapes(layer);
        let (shared, activation) = (shared.as_ref(), self.activation(mixture));
        if let Some(limit) = self.limited_experts(layer, shared, activation.as_ref()) {
            let input = StepInput::Plain { x: normed };
            return launch::step_experts_limited(
                &self.stream,
                tokens,
                &input,
                &step,
                shapes,
                shared,
                limit,
            );
        }
        let activation = activation.as_ref();
        launch::experts_activated(&self.stream, tokens, &step, shapes, shared, activation)
    }

    /// The choice of a step's mixture, and whether its experts make it themselves: only `fused` ones do.
    fn step_routing(
        &self,
        layer: LayerId,
        fused: bool,
        mixture: &Mixture,
    ) -> Result<(Routing, bool), CudaError> {
        let (tokens, experts) = (self.tokens, self.sizes.experts);
        let drafts = self.drafts_of(layer);
        let part = |all: &Floats| all.part(layer.index() * tokens * experts, tokens * experts);
        let replaced = self.routing.replaces() && drafts.is_none();
        let replaced = replaced.then(|| part(&self.buffers.replaced));
        let place = layer.index() * tokens * self.options.top_k * 4;
        let mut route = self.routing_of(layer, mixture, replaced, place, drafts.is_none());
        if let Some(drafts) = drafts {
            drafts.redirect(&mut route);
        }
        let (device, shapes) = (self.stream.device(), self.experts.shapes(layer));
        let within = fused
            && drafts.is_none()
            && !self.experts.residency.can_move()
            && launch::step_serves_routing(device, shapes, &route);
        if !within {
            launch::route(&self.stream, tokens, &route)?;
        }
        if drafts.is_some() {
            launch::leave_out_absent(&self.stream, route.chosen, route.weights, route.addresses)?;
        }
        Ok((route, within))
    }

    /// Everything of the step is launched or recorded: runs it, and does the host's work meanwhile.
    pub(super) fn set_going(&mut self) -> Result<(), EngineError> {
        if self.experts.residency.can_move() {
            self.run(|this| {
                // Guesses of all layers lie behind what they used.
                let kinds = 1 + usize::from(this.prefetch.is_some());
                let count = kinds * this.sizes.layers * this.tokens * this.options.top_k;
                let to = this.buffers.pinned.uses.span(0, count);
                this.stream.copy(this.buffers.uses.span(0, count), to)
            });
        }
        if self.mode == Mode::Capture {
            if let Some((norm, head)) = self.steps.head {
                self.run(|this| this.head(None, norm, head));
            }
            // The capture has to end whatever happened in it.
            let graph = self.stream.end_capture();
            self.mode = Mode::Replay;
            if let Some(error) = self.failure.take() {
                return Err(error.into());
            }
            self.steps.graphs[self.tokens] = Some(graph?);
        }
        // What a recorded step copies has to be there; until now the host had other work.
        self.fill_rows()?;
        let leaving = if self.sizes.ends() { None } else { Some(self.free_landing()?) };
        self.attend();
        if self.mode == Mode::Replay
            && let Some(graph) = &self.steps.graphs[self.tokens]
        {
            self.stream.launch_graph(graph)?;
            self.steps.head_rows = self.tokens;
        }
        if let Some(error) = self.failure.take() {
            return Err(error.into());
        }
        if let Some(landing) = leaving {
            self.queue_leaving(landing)?;
        }
        self.steps.done.record(&self.stream)?;
        self.steps.running = true;
        self.mode = Mode::Eager;
        self.experts.residency.learn();
        if self.routing.replaces() {
            self.steps.prepared = Some((self.prepare_logits(), self.tokens));
        }
        Ok(())
    }

    /// Serves the running step, if there is one, until it has ended.
    ///
    /// # Errors
    /// A record that could not be read, logits that are no numbers, a device that failed.
    pub(super) fn finish_step(&mut self) -> Result<(), EngineError> {
        if self.mode == Mode::Capture {
            // The pass was given up half-way: nothing of it has run.
            self.mode = Mode::Eager;
            drop(self.stream.end_capture());
        }
        if !std::mem::take(&mut self.steps.running) {
            return self.steps.failed.take().map_or(Ok(()), Err);
        }
        let is_served = self.is_served();
        let steps = &mut self.steps;
        let pinned = &self.buffers.pinned;
        let residency = &mut self.experts.residency;
        let served = if is_served {
            let (slots, server) = residency.serving();
            let mut port = Port {
                ring: &pinned.ring,
                answers: &pinned.answers,
                done: &steps.done,
                taken: &mut steps.taken,
                prefetch: self.prefetch.as_mut(),
                slots,
                failure: None,
            };
            server.serve(&mut port)
        } else {
            self.stream.wait().map(|()| 0).map_err(EngineError::from)
        };
        protocol::forget_answers(pinned.answers.words(), residency.answered());
        if served.is_ok() {
            self.forget_batch();
        } else {
            self.steps.unended = true;
        }
        self.check_status(served)?;
        let residency = &mut self.experts.residency;
        if residency.can_move() {
            let (pairs, words) = (self.tokens * self.options.top_k, &self.buffers.pinned.uses);
            residency.end_step(|layer| {
                let chosen = words.collect(layer * pairs..(layer + 1) * pairs);
                chosen.map(|word| ExpertId((word & !FROM_COPY) as u16))
            });
            self.judge_guesses();
        } else {
            residency.note_resident(self.sizes.mixtures, self.tokens * self.options.top_k);
        }
        Ok(())
    }

    /// Compares what the step guessed with what it used.
    fn judge_guesses(&mut self) {
        let Some(prefetch) = &mut self.prefetch else { return };
        // The table as the step saw it: the host's mirror has gone on.
        let (table, slots) = (&self.buffers.pinned.table, self.experts.all_slots());
        let experts = self.sizes.experts;
        let tier = |layer: LayerId, expert: ExpertId| {
            let key = layer.index() * experts + expert.index();
            let address = table.collect(key..key + 1).next().unwrap_or(0);
            if address == 0 {
                Tier::Disk
            } else if address.wrapping_sub(slots.address()) < slots.len() as u64 {
                Tier::Device
            } else {
                Tier::Host
            }
        };
        let words = 2 * self.sizes.layers * self.tokens * self.options.top_k;
        let words: Vec<u32> = self.buffers.pinned.uses.collect(0..words).collect();
        prefetch.judge(self.tokens, &words, self.experts.residency.uses(), tier);
    }

    /// Takes what the work that has ended said of itself: refuses router logits that are no numbers, and the output of
    /// a step whose wait failed.
    pub(super) fn check_status<T>(
        &self,
        served: Result<T, EngineError>,
    ) -> Result<(), EngineError> {
        let pinned = &self.buffers.pinned;
        let Some(token) = protocol::outcome(served, pinned.status.words())? else { return Ok(()) };
        let place = self.tokens + token;
        let position = pinned.inputs.collect(place..place + 1).next().unwrap_or(0) as usize;
        Err(EngineError::NotFinite { position })
    }

    /// Logits of the given tokens into `buffers.logits`, and the most likely ones into pinned memory.
    fn head(
        &self,
        rows: Option<&[usize]>,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<(), CudaError> {
        let count = rows.map_or(self.tokens, <[usize]>::len);
        let chosen = rows.map(|rows| {
            let pinned = &self.buffers.pinned.rows;
            pinned.hand_over(0, rows.iter().map(|&row| row as u32));
            pinned.span(0, count)
        });
        let (hidden, vocabulary) = (self.sizes.hidden, self.sizes.vocabulary);
        let normed = self.buffers.normed_rows.part(0, count * hidden);
        let residual = self.register(Register::Residual);
        let logits = self.buffers.logits.part(0, count * vocabulary);
        let job = [(self.matrix(head), logits)];
        match (norm, chosen) {
            (Some(norm), None) if self.fused_head(norm, head, logits)? => {}
            (Some(norm), chosen) => {
                let (weight, epsilon) = (self.vector(norm), self.config.rms_epsilon);
                launch::rms_norm(&self.stream, count, residual, chosen, weight, epsilon, normed)?;
                launch::linear(&self.stream, normed, count, &job, false)?;
            }
            (None, Some(chosen)) => {
                launch::gather_rows(&self.stream, residual, hidden, chosen, normed)?;
                launch::linear(&self.stream, normed, count, &job, false)?;
            }
            (None, None) => self.products(residual.part(0, count * hidden), &job, false)?,
        }
        if let Some(cap) = self.config.stream.softcap {
            launch::cap(&self.stream, logits, cap)?;
        }
        let scratch = self.buffers.arg_max.span(0, count * launch::ARG_MAX_BLOCKS);
        let tokens = self.buffers.pinned.tokens.span(0, count);
        launch::arg_max(&self.stream, logits, vocabulary, scratch, tokens)
    }

    /// Makes sure that logits of `tokens` are computed, by the step itself where it does: other kernels give other
    /// bits. Gives the row of the first, which the others follow; `None` when each token has its own.
    pub(super) fn step_head(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<Option<usize>, EngineError> {
        self.steps.head = Some((norm, head));
        self.finish_step()?;
        if tokens.iter().all(|&token| token < self.steps.head_rows) {
            return Ok(None);
        }
        let place = match tokens {
            [token] => self.steps.drawn.iter().position(|drawn| drawn == token),
            _ => None,
        };
        if let Some(place) = place.filter(|_| self.steps.drawn_done) {
            return Ok(Some(place));
        }
        let drawn = std::mem::take(&mut self.steps.drawn);
        let rows = if place.is_some() { &drawn } else { tokens };
        self.run(|this| this.head(Some(rows), norm, head));
        // The rows of a step's own logits are gone.
        self.steps.head_rows = 0;
        self.settle()?;
        if place.is_some() {
            self.steps.drawn = drawn;
            self.steps.drawn_done = true;
        }
        Ok(Some(place.unwrap_or(0)))
    }

    /// The most likely token after one of the batch, as the device chose it.
    pub(super) fn step_most_likely(
        &mut self,
        token: usize,
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<u32, EngineError> {
        let place = self.step_head(&[token], norm, head)?.unwrap_or(token);
        let mut chosen = self.buffers.pinned.tokens.collect(place..place + 1);
        let chosen = chosen.next().unwrap_or(u32::MAX);
        let part = self.sequences.spans().iter().rfind(|part| part.first <= token);
        let position = part.map_or(0, |part| part.position + token - part.first);
        if chosen == u32::MAX { Err(EngineError::NotFinite { position }) } else { Ok(chosen) }
    }
}
