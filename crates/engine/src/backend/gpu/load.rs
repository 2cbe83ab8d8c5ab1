//! What a backend holds from its start: dense weights, the buffers of a batch, and the slots.

use std::ops::ControlFlow;
use std::sync::Arc;

use gpu::{Buffer, Gpu, Trunk};
use store::cache::Phase;
use store::format::ProjectionShape;
use store::trunk::LoadMode;

use super::chosen_rows::ChoiceBuffers;
use super::compressed::CompressedBuffers;
use super::constants::Constants;
use super::draw::Head;
use super::experts::{self, ExpertMemory, MixtureBuffers};
use super::given::GivenTables;
use super::latent::LatentBuffers;
use super::places::Places;
use super::prefetch::Prefetch;
use super::requirements::{Sizes, held_runs};
use super::step::Steps;
use super::streams::StreamBuffers;
use super::{BATCH_LIMIT, GpuBackend, GpuOptions, Prediction, check_kv_type, fused};
use crate::EngineError;
use crate::backend::check_layers;
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
        check_kv_type(options.kv_type, &config)?;
        check_layers(&options.layers, &config)?;
        let sizes = Sizes::new(&config, &options);
        let mut trunk = Trunk::default();
        let names: Vec<&str> = catalog.encodings().map(|(name, _)| name).collect();
        let vectors = catalog.load_parts(mode, progress, &mut |id, matrix| {
            trunk.skip_to(id.index());
            Ok(trunk.add(&mut gpu, names[id.index()], &matrix)?)
        })?;
        let matrices = gpu.adapter().matrices;
        let mut numbers = |what: &str, count: usize| gpu.buffer(what, 4 * count as u64);
        let mut held = Vec::with_capacity(vectors.len());
        let mut empty = None;
        for (run, values, own) in held_runs(catalog) {
            let buffer = match &empty {
                Some(buffer) if !own => Buffer::clone(buffer),
                _ => numbers("a vector", values)?,
            };
            if values == 0 {
                empty = Some(buffer.clone());
            }
            held.extend(std::iter::repeat_n(buffer, run.len()));
        }
        let registers = sizes.registers.iter().map(|&count| numbers("activations", count));
        let registers = registers.collect::<Result<Vec<_>, _>>()?;
        let halves = fused::halves(&mut numbers, &sizes, matrices)?;
        let partial = numbers("attention", sizes.partial)?;
        let token_ids = numbers("tokens", sizes.tokens)?;
        let angles = numbers("angles", sizes.angles)?;
        let windowed = numbers("angles", sizes.windowed_angles)?;
        for (run, _) in catalog.vector_runs().filter(|(_, values)| *values > 0) {
            let values = vectors[run.clone()].concat();
            gpu.write_floats(&held[run.start], 0, &values)?;
        }
        let mixture = MixtureBuffers::new(&mut gpu, &sizes, &config)?;
        let constants = Constants::new(&mut gpu, &config)?;
        let latent = LatentBuffers::new(&mut gpu, sizes.latent)?;
        let choice = ChoiceBuffers::new(&mut gpu, sizes.choice)?;
        let streams = StreamBuffers::new(&mut gpu, sizes.streams)?;
        let compressed = CompressedBuffers::new(&mut gpu, &config, &sizes)?;
        let given = GivenTables::load(&mut gpu, catalog)?;
        let places = Places::new(&mut gpu, &options, &sizes)?;
        let head = Head::new(&mut gpu, &sizes)?;
        // Nothing is guessed of layers behind the device's own.
        let (layers, experts) = (options.layers.end, config.moe.experts);
        let mixtures: Vec<bool> = shapes.iter().map(Option::is_some).collect();
        let own = &mixtures[options.layers.clone()];
        let records = own.iter().filter(|has| **has).count() * experts;
        let guesses = options.prediction != Prediction::Off && memory.slots < records;
        let shape = (layers, experts, options.top_k);
        let prefetch = || Prefetch::new(&mut gpu, &sizes, options.prediction, shape);
        let prefetch = guesses.then(prefetch).transpose()?;
        let residency = experts::load(gpu, &config, shapes, memory, &options)?;
        Ok(Self {
            mixture,
            latent,
            choice,
            streams,
            compressed,
            given,
            constants,
            windowed: config.windowed.as_ref().map(|it| (windowed, it.rope.inverse_frequencies())),
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
            steps: Steps::new(options.pieces, options.layers.clone(), mixtures),
            halves,
            partial,
            frequencies: config.attention.rope.inverse_frequencies(),
            spans: Vec::new(),
            ids: Vec::new(),
            tokens: 0,
            at_work: false,
            phase: Phase::Prefill,
            failure: None,
            config,
            prepared: Arc::default(),
            options,
        })
    }
}
