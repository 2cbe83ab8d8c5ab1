//! Layers of hashed n-grams on the CPU: rows are asked for as soon as a batch begins, and mixed into the streams when
//! their layer runs.

use store::LayerId;
use store::rows::{RowCounters, RowStore, Ticket};

use super::super::Register;
use super::super::ngram_rows::{computed, push_run};
use super::gated_streams::{inverse_rms, norm_row, sigmoid};
use super::{CpuBackend, CpuOptions};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::ngram::{NgramHash, NgramMixing, taps};
use crate::sequences::Part;

/// The rows of a model's layers of n-grams.
#[derive(Default)]
pub(super) struct NgramRows {
    /// By layer: its hash, where its rows come from, and what was asked for of the batch in progress.
    layers: Vec<NgramSource>,
}

struct NgramSource {
    layer: LayerId,
    hash: NgramHash,
    store: RowStore,
    ticket: Option<Ticket>,
    /// Rows of the batch, token by token.
    wanted: Vec<u64>,
}

impl NgramRows {
    /// The rows of `config`'s layers from `stores`, one for each.
    ///
    /// # Errors
    /// A layer without a store.
    pub(super) fn new(
        config: &ModelConfig,
        options: &CpuOptions,
        stores: Vec<RowStore>,
    ) -> Result<Self, EngineError> {
        let Some(ngrams) = &config.ngrams else { return Ok(Self { layers: Vec::new() }) };
        let computed = computed(ngrams, &options.layers);
        let count = computed.clone().count();
        if stores.len() != count {
            let found = format!("{} stores of rows for {count}", stores.len());
            return Err(EngineError::Request(found));
        }
        let layers = computed.zip(stores);
        let sources = layers.map(|((layer, hash), store)| NgramSource {
            layer: LayerId(layer as u16),
            hash: hash.clone(),
            store,
            ticket: None,
            wanted: Vec::with_capacity(options.batch_tokens * ngrams.rows()),
        });
        Ok(Self { layers: sources.collect() })
    }

    /// Bytes that rows of a batch hold, with the stores and their caches.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> u64 {
        let Some(ngrams) = &config.ngrams else { return 0 };
        let rows = options.batch_tokens * ngrams.rows();
        // The widest of the floats that a table may hold.
        let row = ngrams.columns() * size_of::<f32>();
        let store = RowStore::required_bytes(row, options.row_cache, rows);
        computed(ngrams, &options.layers).count() as u64
            * (store + (rows * size_of::<u64>()) as u64)
    }

    /// Adds what was counted.
    pub(super) fn count(&self, counters: &mut RowCounters) {
        self.layers.iter().for_each(|source| counters.add(&source.store.counters()));
    }

    /// Forgets what was asked for: the batch that goes on is another.
    pub(super) fn forget(&mut self) {
        self.layers.iter_mut().for_each(|source| source.ticket = None);
    }
}

impl CpuBackend {
    /// Begins to read the rows of the batch.
    pub(super) fn ask_for_rows(&mut self) {
        self.ngram_rows.forget();
        for place in 0..self.ngram_rows.layers.len() {
            self.find_rows(place);
            let source = &mut self.ngram_rows.layers[place];
            source.ticket = Some(source.store.ask(&source.wanted));
        }
    }

    /// The rows of all tokens of the batch; those before it are kept with their sequences.
    fn find_rows(&mut self, place: usize) {
        let NgramSource { layer, hash, wanted, .. } = &mut self.ngram_rows.layers[place];
        wanted.clear();
        for (run, span) in self.spans.iter().enumerate() {
            let (ring, kept) = self.sequences.ring(span.sequence, *layer, Part::Ngrams);
            let kept = |position| kept[ring.row(position)].last().map_or(0, |id| id.to_bits());
            push_run(hash, (&self.spans, run), &self.tokens, kept, wanted);
        }
    }

    pub(super) fn run_gather_rows(&mut self, layer: LayerId) -> Result<(), EngineError> {
        let place = self.ngram_rows.layers.iter().position(|source| source.layer == layer);
        let missing = || EngineError::Request("a layer of n-grams has no store of rows".to_owned());
        let place = place.ok_or_else(missing)?;
        if self.ngram_rows.layers[place].ticket.is_none() {
            // The batch was put aside before this layer.
            self.find_rows(place);
        }
        let source = &mut self.ngram_rows.layers[place];
        let ticket = match source.ticket.take() {
            Some(ticket) => ticket,
            None => source.store.ask(&source.wanted),
        };
        let rows = source.store.wait(ticket)?;
        let columns = source.store.columns();
        let out = self.registers.get_mut(Register::Rows);
        let wanted = &source.wanted;
        self.compute.each_row(out, columns, |index, out| rows.decode(wanted[index], out));
        Ok(())
    }

    pub(super) fn run_mix_ngrams(&mut self, layer: LayerId, weights: &NgramMixing) {
        self.gate_values(weights);
        let shape = self.config.ngrams.as_ref().expect("a layer of n-grams has a shape");
        let (wide, kernel) = (self.config.streams() * self.config.hidden, shape.kernel);
        let taps_of = self.weights.vector(weights.convolution);
        for (run, span) in self.spans.iter().enumerate() {
            let (ring, kept) = self.sequences.ring(span.sequence, layer, Part::Ngrams);
            let (values, seen, residual) = self.registers.two_inputs(
                Register::StreamValues,
                Register::StreamsNormed,
                Register::Residual,
            );
            let rows = span.first * wide..(span.first + span.tokens) * wide;
            let before = &*kept;
            self.compute.for_rows(&mut residual[rows], wide, 1, |at, out| {
                let position = span.position + at;
                let mut sums = vec![0.0f32; wide];
                for (tap, from) in taps(shape, position) {
                    let row = match from.checked_sub(span.position) {
                        Some(at) => &seen[(span.first + at) * wide..][..wide],
                        None => &before[ring.row(from)][..wide],
                    };
                    let weights = taps_of.iter().skip(tap).step_by(kernel);
                    for ((sum, value), weight) in sums.iter_mut().zip(row).zip(weights) {
                        *sum += weight * value;
                    }
                }
                let values = &values[(span.first + at) * wide..][..wide];
                for ((out, value), sum) in out.iter_mut().zip(values).zip(&sums) {
                    *out += value + sum * sigmoid(*sum);
                }
            });
            for at in span.tokens.saturating_sub(ring.rows())..span.tokens {
                let row = &mut kept[ring.row(span.position + at)];
                let token = span.first + at;
                row[..wide].copy_from_slice(&seen[token * wide..][..wide]);
                row[wide] = f32::from_bits(self.tokens[token]);
            }
            self.sequences.keep(layer, Part::Ngrams, run);
        }
    }

    /// `StreamValues` = what each stream takes of the value in `Normed`, and `StreamsNormed` its norm.
    fn gate_values(&mut self, weights: &NgramMixing) {
        let (hidden, epsilon) = (self.config.hidden, self.config.rms_epsilon);
        let streams = self.config.streams();
        let [key_norm, query_norm, norm] =
            [weights.key_norm, weights.query_norm, weights.convolution_norm]
                .map(|id| self.weights.vector(id));
        let (value, residual, gated) =
            self.registers.two_inputs(Register::Normed, Register::Residual, Register::StreamValues);
        self.compute.for_rows(gated, hidden, 2, |index, row| {
            let stream = index % streams * hidden..(index % streams + 1) * hidden;
            let query = &residual[index * hidden..(index + 1) * hidden];
            let factors = [inverse_rms(row, epsilon), inverse_rms(query, epsilon)];
            let norms = key_norm[stream.clone()].iter().zip(&query_norm[stream]);
            let mut dot = 0.0f64;
            for ((key, query), (of_key, of_query)) in row.iter().zip(query).zip(norms) {
                dot +=
                    f64::from(key * factors[0] * of_key) * f64::from(query * factors[1] * of_query);
            }
            let agreement = dot as f32 / (hidden as f32).sqrt();
            let root = agreement.abs().max(1e-6).sqrt();
            let gate = match agreement {
                agreement if agreement > 0.0 => root,
                agreement if agreement < 0.0 => -root,
                // Nothing, or no number.
                agreement => agreement,
            };
            let value = &value[index / streams * hidden..][..hidden];
            row.iter_mut().zip(value).for_each(|(out, value)| *out = sigmoid(gate) * value);
        });
        let (gated, normed) = self.registers.pair(Register::StreamValues, Register::StreamsNormed);
        self.compute.for_rows(normed, hidden, 2, |index, out| {
            let row = &gated[index * hidden..(index + 1) * hidden];
            norm_row(row, &norm[index % streams * hidden..][..hidden], epsilon, out);
        });
    }
}
