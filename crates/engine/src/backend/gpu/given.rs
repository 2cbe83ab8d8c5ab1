//! Tables that give each token of the vocabulary its experts.

use gpu::op::router_scored::Given;
use gpu::{Buffer, Gpu};

use super::GpuOptions;
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::weights::{Catalog, TableId};

/// Words of a table of numbers, two in each.
fn words_of(numbers: usize) -> usize {
    numbers.div_ceil(2)
}

/// Words of the tables of the layers that a device computes.
pub(super) fn sizes(config: &ModelConfig, options: &GpuOptions) -> Vec<usize> {
    let hashed = options.layers.clone().filter(|&layer| layer < config.moe.hashed_layers);
    hashed.map(|_| words_of(config.vocabulary * config.moe.top_k)).collect()
}

/// The tables of a model; those of other devices' layers are empty.
pub(super) struct GivenTables(Vec<Option<(Buffer, usize)>>);

impl GivenTables {
    pub(super) fn load(gpu: &mut Gpu, catalog: &Catalog<'_>) -> Result<Self, EngineError> {
        let tables = catalog.read_tables()?;
        let held = tables.iter().map(|table| {
            let numbers = table.numbers();
            if numbers.is_empty() {
                return Ok(None);
            }
            let pair = |pair: &[u16]| {
                u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 16
            };
            let words: Vec<u32> = numbers.chunks(2).map(pair).collect();
            let buffer = gpu.buffer("experts of tokens", 4 * words_of(numbers.len()) as u64)?;
            gpu.write_words(&buffer, 0, &words)?;
            Ok(Some((buffer, table.columns())))
        });
        Ok(Self(held.collect::<Result<_, EngineError>>()?))
    }

    /// The experts of each of the tokens `ids`.
    pub(super) fn of<'a>(&'a self, table: TableId, ids: &'a Buffer) -> Given<'a> {
        let held = self.0[table.index()].as_ref();
        let (table, columns) = held.expect("the layers that a device computes have their tables");
        Given { table, columns: *columns, ids }
    }
}
