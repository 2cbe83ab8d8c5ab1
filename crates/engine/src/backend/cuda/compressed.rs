//! Compressed attention and several residual streams on the GPU, one kernel after the other.
//!
//! Rows of the window that belong to the run in progress lie in a buffer of the batch until it is attended: the ring of
//! a sequence has no room for both. Compressed rows are made before, and a token sees only those that its position
//! completes. So neither chunks nor batches change a bit.

use cuda::launch::{
    self, Given, Pool, RowAttention, RowChoice, SequenceRows, StreamSite, TokenPlaces, Turn,
};
use cuda::{CudaError, Span};
use store::LayerId;

use super::buffers::Input;
use super::compressed_scratch::Compressed;
use super::{CudaBackend, Register};
use crate::model::compressed_attention::{CompressedAttention, Compressor};
use crate::model::hyper_connections::Site;
use crate::model::mixture::Mixture;
use crate::sequences::Part as SequencePart;
use crate::weights::{MatrixId, TableId, VectorId};

impl CudaBackend {
    fn compressed(&self) -> &Compressed {
        self.compressed.as_ref().expect("only called for models with compressed attention")
    }

    /// Products of the streams with a site's matrix, made into weights; of the input alone at the last site.
    fn weigh(&self, site: &Site, last: bool) -> Result<Span<f32>, CudaError> {
        let (held, tokens) = (self.compressed(), self.tokens);
        let (hyper, residual) = (held.hyper(), self.register(Register::Residual));
        let weights = held.weights(tokens, if last { hyper.streams } else { hyper.outputs() });
        let matrix = self.matrix(site.matrix);
        if self.single {
            self.products(residual, &[(matrix, weights)], false)?;
        } else if launch::serves_columns(self.stream.device(), matrix.columns()) {
            launch::linear(&self.stream, residual, tokens, &[(matrix, weights)], false)?;
        } else {
            launch::tile_linear(&self.stream, residual, tokens, matrix, weights, false, None)?;
        }
        let of_site = StreamSite {
            base: self.vector(site.base),
            scale: self.vector(site.scale),
            iterations: (!last).then_some(hyper.iterations),
            epsilon: hyper.epsilon,
            norm_epsilon: self.config.rms_epsilon,
        };
        launch::weigh_streams(&self.stream, tokens, &held.streams(residual), &of_site, weights)?;
        Ok(weights)
    }

    pub(super) fn launch_open_streams(&mut self, site: &Site, norm: VectorId) {
        self.run(|this| {
            let (held, tokens) = (this.compressed(), this.tokens);
            let weights = this.weigh(site, false)?;
            let (streams, read) =
                (held.streams(this.register(Register::Residual)), held.read(tokens));
            launch::collapse_streams(&this.stream, tokens, &streams, (weights, false), read)?;
            let (weight, to) = (this.vector(norm), this.register(Register::Normed));
            let epsilon = this.config.rms_epsilon;
            launch::rms_norm(&this.stream, tokens, read, None, weight, epsilon, to)
        });
    }

    /// Where embeddings of a batch's tokens go: the residual stream, or what [`CudaBackend::spread`] takes.
    pub(super) fn embedded(&self) -> Span<f32> {
        match &self.compressed {
            Some(held) => held.read(self.tokens),
            None if self.config.gated.is_some() => self.register(Register::Normed),
            None => self.register(Register::Residual),
        }
    }

    /// Where there are several streams, begins each with the embedding.
    pub(super) fn spread(&self) -> Result<(), CudaError> {
        if self.compressed.is_none() && self.config.gated.is_none() {
            return Ok(());
        }
        let streams = self.streams_in(Register::Residual);
        launch::spread_streams(&self.stream, self.tokens, &streams, self.embedded())
    }

    pub(super) fn launch_close_streams(&mut self, from: Register) {
        self.run(|this| this.mix(this.register(from)));
    }

    /// Mixes the streams and gives them a block's output, as the last site that was opened says.
    fn mix(&self, output: Span<f32>) -> Result<(), CudaError> {
        let (held, tokens) = (self.compressed(), self.tokens);
        let streams = held.streams(self.register(Register::Residual));
        let weights = held.weights(tokens, held.hyper().outputs());
        launch::mix_streams(&self.stream, tokens, &streams, weights, output)
    }

    /// The merged streams of all tokens lie one after the other.
    pub(super) fn launch_merge_streams(&mut self, site: &Site) {
        self.run(|this| {
            let (held, tokens) = (this.compressed(), this.tokens);
            let weights = this.weigh(site, true)?;
            let residual = this.register(Register::Residual);
            let (streams, read) = (held.streams(residual), held.read(tokens));
            launch::collapse_streams(&this.stream, tokens, &streams, (weights, true), read)?;
            this.stream.copy(read, residual.part(0, read.len()))
        });
    }

    /// Where a mixture adds its output: zeros that [`CudaBackend::give_output`] takes, or the one residual stream.
    pub(super) fn mixture_output(&self, mixture: &Mixture) -> Result<Span<f32>, CudaError> {
        let output = match (&self.compressed, mixture.to) {
            (Some(held), _) => held.read(self.tokens),
            (None, Some(_)) => self.own_output(),
            (None, None) if self.config.gated.is_some() => self.gated_output(),
            (None, None) => return Ok(self.register(Register::Residual)),
        };
        self.stream.clear(output)?;
        Ok(output)
    }

    /// Where a mixture adds an output of its own, without a shared expert, which would write there.
    pub(super) fn own_output(&self) -> Span<f32> {
        self.buffers.shared_out.part(0, self.tokens * self.sizes.hidden)
    }

    /// Gives what a mixture gave to the streams where there are several, or to a register of its own.
    pub(super) fn give_output(
        &self,
        mixture: &Mixture,
        output: Span<f32>,
    ) -> Result<(), CudaError> {
        match (&self.compressed, mixture.to) {
            (Some(_), _) => self.mix(output),
            (None, Some(to)) => self.stream.copy(output, self.register(to)),
            (None, None) if self.config.gated.is_some() => self.inject(output),
            (None, None) => Ok(()),
        }
    }

    pub(super) fn launch_grouped_linear(&mut self, from: Register, matrix: MatrixId, to: Register) {
        self.run(|this| {
            let (held, tokens) = (this.compressed(), this.tokens);
            let groups = held.shape().output_groups;
            let (whole, encoding) = (this.matrix(matrix), held.encoding(matrix.index()));
            let (rank, width) = (whole.rows() / groups, whole.columns());
            let (x, out) = (this.register(from), this.register(to));
            let [parts, products] = held.grouped(tokens * groups * width, tokens * groups * rank);
            // The parts of one token lie one after the other as they are.
            let (parts, products) = if tokens == 1 { (x, out) } else { (parts, products) };
            if tokens > 1 {
                launch::transpose_rows(&this.stream, (tokens, groups, width), x, parts)?;
            }
            for group in 0..groups {
                let x = parts.part(group * tokens * width, tokens * width);
                let out = products.part(group * tokens * rank, tokens * rank);
                this.products(x, &[(whole.part(encoding, group * rank, rank), out)], false)?;
            }
            if tokens > 1 {
                launch::transpose_rows(&this.stream, (groups, tokens, rank), products, out)?;
            }
            Ok(())
        });
    }

    pub(super) fn launch_attend_compressed(
        &mut self,
        layer: LayerId,
        weights: &CompressedAttention,
    ) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            this.turn(weights)?;
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                this.attend_run(layer, weights, run, (first, places))?;
                let part = (layer, SequencePart::Compressed);
                marks.keep(&this.sequences, &mut this.memory(), part, run)?;
            }
            let rotation = this.compressed().rotation(weights.compressor.is_some());
            let attention = &this.config.attention;
            let heads = (attention.query_heads, attention.head_dim);
            let (x, positions) =
                (this.register(Register::Context), this.input(Input::Position, 0, this.tokens));
            launch::turn_heads(&this.stream, heads, x, rotation, positions, Turn::Back)
        });
        self.sequences.put_pending(marks);
    }

    /// Norms and rotations of queries and keys.
    fn turn(&self, weights: &CompressedAttention) -> Result<(), CudaError> {
        let (held, attention) = (self.compressed(), &self.config.attention);
        let rotation = held.rotation(weights.compressor.is_some());
        let (epsilon, positions) =
            (self.config.rms_epsilon, self.input(Input::Position, 0, self.tokens));
        let turn = |register, heads, kind| {
            let x = self.register(register);
            launch::turn_heads(&self.stream, heads, x, rotation, positions, kind)
        };
        let dim = attention.head_dim;
        turn(Register::Query, (attention.query_heads, dim), Turn::Normed(epsilon, None))?;
        let norm = Some(self.vector(weights.key_norm));
        turn(Register::Key, (1, dim), Turn::Normed(epsilon, norm))?;
        if weights.indexer.is_none() {
            return Ok(());
        }
        let index = held.shape().index;
        let rounded = crate::sequences::key_type(self.options.kv_type).is_none();
        let kind = if rounded { Turn::Rounded } else { Turn::Alone };
        turn(Register::IndexQuery, (index.heads, index.dim), kind)
    }

    /// Rows `first..` of a register, `width` values each, as many as a run has tokens.
    fn run_rows(
        &self,
        register: Register,
        (first, tokens): (usize, usize),
        width: usize,
    ) -> Span<f32> {
        self.buffers.registers[register as usize].part(first * width, tokens * width)
    }

    /// Makes what rows a run completes, attends, and keeps the window of the next.
    fn attend_run(
        &self,
        layer: LayerId,
        weights: &CompressedAttention,
        run: usize,
        (first, places): (usize, TokenPlaces),
    ) -> Result<(), CudaError> {
        let (held, attention) = (self.compressed(), &self.config.attention);
        let tokens = places.positions.len();
        let (heads, dim, of_run) = (attention.query_heads, attention.head_dim, (first, tokens));
        let compression = weights.compressor.as_ref().map(|(compression, _)| *compression);
        let layout = self.sizes.layout.compressed();
        let rows = self.place_buffers.compressed().rows(layout.layer_rows(layer.index()), places);
        let stored = held.stored_rows(layer, compression.is_some());
        let [tail, key_tail] = layout.tails(layer.index());
        if let Some((compression, compressor)) = &weights.compressor {
            let width = compression.width(dim);
            let given = [Register::CompressedValues, Register::CompressedGates]
                .map(|register| self.run_rows(register, of_run, width));
            let pool = self.pool(compressor, given);
            launch::pool_rows(&self.stream, &rows, &Pool { tail, stored, ..pool })?;
        }
        let mut chosen = None;
        if let (Some(indexer), Some(compression)) = (&weights.indexer, compression) {
            let index = held.shape().index;
            let given = [Register::IndexValues, Register::IndexGates]
                .map(|register| self.run_rows(register, of_run, compression.width(index.dim)));
            let pool = self.pool(&indexer.keys, given);
            let keys = held.stored_keys(layer);
            let pool = Pool { tail: key_tail, stored: keys, ..pool };
            launch::pool_rows(&self.stream, &rows, &pool)?;
            let most = held.most_rows(compression);
            // A step is recorded for every position.
            let part = &self.sequences.spans()[run];
            let visible = match places.single {
                true => most,
                false => (part.position + part.tokens) / compression.ratio,
            };
            if visible > index.top {
                self.choose(&rows, first, (keys, most))?;
            }
            chosen = Some(held.chosen(first, tokens));
        }
        let span = held.span(first, tokens);
        let keys = self.run_rows(Register::Key, of_run, dim);
        launch::store_window_rows(&self.stream, &rows, &stored, keys, span)?;
        let job = RowAttention {
            query: self.run_rows(Register::Query, of_run, heads * dim),
            out: self.run_rows(Register::Context, of_run, heads * dim),
            partial: held.partial.all(),
            span,
            chosen,
            sinks: self.vector(weights.sinks),
            heads,
            most: held.seen(),
            stored,
        };
        launch::attend_rows(&self.stream, &rows, &job)?;
        launch::keep_window_rows(&self.stream, &rows, &stored, keys, span)
    }

    /// A compressor at work on a run's values and gates; its places are not said yet.
    fn pool(&self, compressor: &Compressor, [values, gates]: [Span<f32>; 2]) -> Pool {
        let held = self.compressed();
        Pool {
            values,
            gates,
            added: self.vector(compressor.positions),
            norm: self.vector(compressor.norm),
            epsilon: self.config.rms_epsilon,
            rotation: held.rotation(true),
            tail: 0,
            stored: held.stored_rows(LayerId(0), false),
        }
    }

    /// Chooses compressed rows for the tokens of a run, some tokens at a time.
    fn choose(
        &self,
        rows: &SequenceRows,
        first: usize,
        (keys, most): (launch::StoredRows, usize),
    ) -> Result<(), CudaError> {
        let (held, tokens) = (self.compressed(), rows.places.positions.len());
        let index = held.shape().index;
        let (together, scores) = held.scores(most);
        for start in (0..tokens).step_by(together) {
            let count = together.min(tokens - start);
            let of_part = (first + start, count);
            let places = rows.places.part(start, count);
            let choice = RowChoice {
                query: self.run_rows(Register::IndexQuery, of_part, index.heads * index.dim),
                factors: self.run_rows(Register::IndexWeights, of_part, index.heads),
                scores,
                chosen: held.chosen(first + start, count).0,
                keys,
                heads: index.heads,
                top: index.top,
                most,
                split: false,
            };
            launch::choose_rows(&self.stream, &SequenceRows { places, ..*rows }, &choice)?;
        }
        Ok(())
    }

    /// The experts that a table gives each of the batch's tokens.
    pub(super) fn given(&self, table: TableId) -> Given {
        let (table, columns) = self.compressed().table(table.index());
        Given { table, columns, tokens: self.input(Input::Token, 0, self.tokens) }
    }
}
