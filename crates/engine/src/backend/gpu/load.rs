//! What a backend holds from its start: dense weights, the buffers of a batch, and the slots.

use std::ops::ControlFlow;
use std::sync::Arc;

use gpu::{Gpu, Trunk};
use store::cache::Phase;
use store::format::ProjectionShape;
use store::trunk::LoadMode;

use super::draw::Head;
use super::experts::{self, ExpertMemory, MixtureBuffers};
use super::places::Places;
use super::prefetch::Prefetch;
use super::requirements::Sizes;
use super::step::Steps;
use super::{BATCH_LIMIT, GpuBackend, GpuOptions, Prediction, check_kv_type, fused};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::weights::Catalog;

impl GpuBackend {
    /// True where the host copies records to the device though RAM holds all of them: the driver does not import it.
    pub fn host_copies(&self) -> bool {
        self.residency.device().host_copies()
    }

    /// Loads the dense weights, allocates everything that a batch needs, and the slots.
    ///
    /// # Errors
    /// A failed read, or no memory left on the device.
    pub fn new(
        config: ModelConfig,
        catalog: &Catalog<'_>,
        mode: LoadMode,
        memory: ExpertMemory,
        shapes: &[Option<[ProjectionShape; 3]>],
        (mut gpu, options): (Gpu, GpuOptions),
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, EngineError> {
        if options.batch_tokens > BATCH_LIMIT {
            let asked = options.batch_tokens;
            let found =
                format!("--prefill-chunk {asked}: a GPU computes up to {BATCH_LIMIT} at once");
            return Err(EngineError::Request(found));
        }
        check_kv_type(options.kv_type)?;
        let sizes = Sizes::new(&config, &options);
        let mut trunk = Trunk::default();
        let mut names = catalog.encodings().map(|(name, _)| name);
        let vectors = catalog.load_parts(mode, progress, &mut |_, matrix| {
            let name = names.next().unwrap_or("a matrix");
            Ok(trunk.add(&mut gpu, name, &matrix)?)
        })?;
        let matrices = gpu.adapter().matrices;
        let mut numbers = |what: &str, count: usize| gpu.buffer(what, 4 * count as u64);
        let mut held = Vec::with_capacity(vectors.len());
        for (run, values) in catalog.vector_runs() {
            let buffer = numbers("a vector", values)?;
            held.extend(std::iter::repeat_n(buffer, run.len()));
        }
        let registers = sizes.registers.iter().map(|&count| numbers("activations", count));
        let registers = registers.collect::<Result<Vec<_>, _>>()?;
        let halves = fused::halves(&mut numbers, &sizes, matrices)?;
        let partial = numbers("attention", sizes.partial)?;
        let token_ids = numbers("tokens", sizes.tokens)?;
        let angles = numbers("angles", sizes.angles)?;
        for (run, _) in catalog.vector_runs() {
            let values = vectors[run.clone()].concat();
            gpu.write_floats(&held[run.start], 0, &values)?;
        }
        let mixture = MixtureBuffers::new(&mut gpu, &sizes, &config)?;
        let places = Places::new(&mut gpu, &options, &sizes)?;
        let head = Head::new(&mut gpu, &sizes)?;
        let (layers, experts) = (config.layers.len(), config.moe.experts);
        let guesses = options.prediction != Prediction::Off && memory.slots < layers * experts;
        let shape = (layers, experts, options.top_k);
        let prefetch = || Prefetch::new(&mut gpu, &sizes, options.prediction, shape);
        let prefetch = guesses.then(prefetch).transpose()?;
        let residency = experts::load(gpu, &config, shapes, memory, &options)?;
        Ok(Self {
            mixture,
            sequences: places.owner(&options),
            places,
            // What is read in place needs no copy ahead.
            prefetch: prefetch.filter(|_| !residency.device().reads_in_place()),
            replaced: None,
            residency,
            trunk,
            vectors: held,
            registers,
            token_ids,
            angles,
            head,
            steps: Steps::new(options.pieces, config.layers.len()),
            halves,
            partial,
            frequencies: config.attention.rope.inverse_frequencies(),
            spans: Vec::new(),
            ids: Vec::new(),
            tokens: 0,
            phase: Phase::Prefill,
            failure: None,
            config,
            prepared: Arc::default(),
            options,
        })
    }
}
