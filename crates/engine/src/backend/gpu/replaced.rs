//! Logits of a generator in the place of the routers' ([`Routing::replaces`]): for speed, on synthetic models.
//!
//! Those of all layers of a few tokens are written before their batch is recorded, and drawn while the one before runs,
//! so that steps are handed over as without; larger batches get each layer's when it is recorded.

use std::ops::Range;

use gpu::{Buffer, Gpu, GpuError, Span};
use store::LayerId;

use super::requirements::{Sizes, replaced_row};
use super::step::STEP_TOKENS;
use crate::routing::Routing;

/// A generator, and what it gives the batch in progress.
pub(super) struct Replaced {
    routing: Routing,
    /// Layers that the device computes: each draws by itself, and those of other devices are drawn there.
    layers: Range<usize>,
    experts: usize,
    /// `[layers, tokens, experts]`, each layer at a multiple of [`Gpu::ALIGNMENT`].
    logits: Buffer,
    /// The next batch's, if it has as many tokens.
    drawn: Vec<f32>,
    drawn_tokens: usize,
    /// Tokens whose logits the buffer has.
    tokens: usize,
}

impl Replaced {
    pub(super) fn new(
        gpu: &mut Gpu,
        routing: Routing,
        sizes: &Sizes,
        (layers, experts): (Range<usize>, usize),
    ) -> Result<Self, GpuError> {
        let logits = gpu.buffer("replaced logits", 4 * sizes.replaced as u64)?;
        let (drawn, drawn_tokens, tokens) = (Vec::new(), 0, 0);
        Ok(Self { routing, layers, experts, logits, drawn, drawn_tokens, tokens })
    }

    /// A batch begins: writes the logits of all layers where it has few tokens.
    pub(super) fn begin(&mut self, gpu: &mut Gpu, tokens: usize) -> Result<(), GpuError> {
        self.tokens = 0;
        if tokens > STEP_TOKENS {
            self.drawn_tokens = 0;
            return Ok(());
        }
        if self.drawn_tokens != tokens {
            self.draw(tokens);
        }
        self.drawn_tokens = 0;
        self.tokens = tokens;
        gpu.write_floats(&self.logits, 0, &self.drawn)
    }

    /// While a batch of few tokens runs: draws what the next one needs, which probably has as many.
    pub(super) fn draw_ahead(&mut self) {
        if self.tokens > 0 && self.drawn_tokens == 0 {
            self.draw(self.tokens);
        }
    }

    fn draw(&mut self, tokens: usize) {
        let (row, count) = (replaced_row(tokens, self.experts), tokens * self.experts);
        self.drawn.clear();
        self.drawn.resize(self.layers.end * row, 0.0);
        let rows = self.drawn.chunks_exact_mut(row).enumerate();
        for (layer, logits) in rows.skip(self.layers.start) {
            let logits = &mut logits[..count];
            self.routing.override_logits(LayerId(layer as u16), self.experts, logits);
        }
        self.drawn_tokens = tokens;
    }

    /// A batch goes on that was put aside: its layers' logits are drawn one by one.
    pub(super) fn resume(&mut self) {
        (self.tokens, self.drawn_tokens) = (0, 0);
    }

    /// Logits of a layer of the batch; of a large one they are written to `to`.
    pub(super) fn logits<'a>(
        &'a mut self,
        gpu: &mut Gpu,
        (layer, tokens): (LayerId, usize),
        to: &'a Buffer,
    ) -> Result<Span<'a>, GpuError> {
        if self.tokens == tokens {
            let row = 4 * replaced_row(tokens, self.experts) as u64;
            return Ok(self.logits.span(layer.index() as u64 * row, row));
        }
        let mut logits = vec![0.0; tokens * self.experts];
        self.routing.override_logits(layer, self.experts, &mut logits);
        gpu.write_floats(to, 0, &logits)?;
        Ok(to.all())
    }
}
