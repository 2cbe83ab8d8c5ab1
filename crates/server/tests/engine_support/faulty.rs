//! A backend that panics where it is told to: before an operation of another, after it, or when a mixture asks whether
//! it is still wanted.
#![allow(clippy::unwrap_used, dead_code, reason = "a failure here is a failed test")]

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use engine::EngineError;
use engine::backend::{
    Backend, Cancel, Purpose, Register, Room, Run, SequenceId, Snapshot, Suspended,
};
use engine::model::compressed_attention::CompressedAttention;
use engine::model::dense::Dense;
use engine::model::hyper_connections::Site;
use engine::model::latent::LatentAttention;
use engine::model::mixture::Mixture;
use engine::sampling::{Ranked, Wanted};
use engine::weights::{MatrixId, TableId, VectorId};
use store::LayerId;
use store::cache::StoreCounters;

use crate::engine_support::{Between, Device};

/// Where a panic comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
    /// While the operation asks whether it is still wanted.
    Inside,
}

#[derive(Default)]
struct State {
    /// The operation, when, and how many times it is let pass.
    armed: Option<(&'static str, When, usize)>,
    /// An operation that always panics.
    broken: Option<&'static str>,
    calls: BTreeMap<&'static str, usize>,
}

/// Where the next panic comes, and which operations were seen.
#[derive(Default)]
pub(crate) struct Trip(Mutex<State>);

impl Trip {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One panic at an operation, after `passed` that go well.
    pub(crate) fn arm(&self, operation: &'static str, when: When, passed: usize) {
        self.state().armed = Some((operation, when, passed));
    }

    /// A panic before each of an operation.
    pub(crate) fn arm_for_good(&self, operation: &'static str) {
        self.state().broken = Some(operation);
    }

    /// No panic any more; true when it has not come.
    pub(crate) fn disarm(&self) -> bool {
        let mut state = self.state();
        state.broken = None;
        state.armed.take().is_some()
    }

    /// How often each operation was called.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, usize> {
        self.state().calls.clone()
    }

    fn at(&self, operation: &'static str, when: When) {
        let mut state = self.state();
        if when == When::Before {
            *state.calls.entry(operation).or_default() += 1;
        }
        if state.broken == Some(operation) && when == When::Before {
            drop(state);
            panic!("a fault for good: {operation}");
        }
        let Some((armed, its, passed)) = &mut state.armed else { return };
        if *armed != operation || *its != when {
            return;
        }
        if *passed > 0 {
            *passed -= 1;
            return;
        }
        state.armed = None;
        drop(state);
        panic!("a fault {when:?} {operation}");
    }

    /// What puts the faulty backend before another.
    pub(crate) fn between(self: &Arc<Self>) -> Between {
        let trip = Arc::clone(self);
        let before = move |inner| Box::new(Faulty { inner, trip: Arc::clone(&trip) }) as Device;
        Between(Some(Arc::new(before)))
    }
}

/// Panics when it is asked.
struct Asked<'a>(&'a dyn Cancel, &'a Trip, &'static str);

impl Cancel for Asked<'_> {
    fn is_cancelled(&self) -> bool {
        self.1.at(self.2, When::Inside);
        self.0.is_cancelled()
    }
}

struct Faulty {
    inner: Device,
    trip: Arc<Trip>,
}

/// Operations that are passed on, with a place for a panic before and after each.
macro_rules! operations {
    ($(fn $name:ident(&mut self $(, $value:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        fn $name(&mut self $(, $value: $kind)*) $(-> $result)? {
            self.trip.at(stringify!($name), When::Before);
            let result = self.inner.$name($($value),*);
            self.trip.at(stringify!($name), When::After);
            result
        }
    )*};
}

/// The same for questions.
macro_rules! questions {
    ($(fn $name:ident(&self $(, $value:ident: $kind:ty)*) -> $result:ty;)*) => {$(
        fn $name(&self $(, $value: $kind)*) -> $result {
            self.trip.at(stringify!($name), When::Before);
            self.inner.$name($($value),*)
        }
    )*};
}

impl Backend for Faulty {
    operations! {
        fn create_sequence(&mut self) -> Result<SequenceId, EngineError>;
        fn drop_sequence(&mut self, sequence: SequenceId);
        fn snapshot(&mut self, sequence: SequenceId, base: Option<&Snapshot>) -> Result<Snapshot, EngineError>;
        fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), EngineError>;
        fn read_snapshot(&mut self, length: usize, input: &mut dyn Read) -> std::io::Result<Snapshot>;
        fn suspend(&mut self) -> Option<Suspended>;
        fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError>;
        fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError>;
        fn expect_given(&mut self, layers: &[(LayerId, TableId)]);
        fn mark(&mut self, run: usize) -> Result<(), EngineError>;
        fn give_up(&mut self, layer: LayerId);
        fn commit(&mut self);
        fn take_marks(&mut self) -> Vec<Snapshot>;
        fn embed(&mut self, table: MatrixId);
        fn rms_norm(&mut self, from: Register, weight: VectorId, to: Register);
        fn linear(&mut self, from: Register, products: &[(MatrixId, Register)]);
        fn linear_add(&mut self, from: Register, matrix: MatrixId, to: Register);
        fn split_query_gate(&mut self);
        fn norm_and_rotate(&mut self, heads: Register, weight: VectorId);
        fn rotate(&mut self, heads: Register);
        fn add_bias(&mut self, register: Register, bias: VectorId);
        fn open_streams(&mut self, site: &Site, norm: VectorId);
        fn close_streams(&mut self, from: Register);
        fn merge_streams(&mut self, site: &Site) -> Result<(), EngineError>;
        fn attend_compressed(&mut self, layer: LayerId, weights: &CompressedAttention);
        fn grouped_linear(&mut self, from: Register, matrix: MatrixId, to: Register);
        fn attend(&mut self, layer: LayerId, sinks: Option<VectorId>);
        fn norm_row(&mut self, register: Register, weight: VectorId);
        fn attend_latent(&mut self, layer: LayerId, weights: &LatentAttention);
        fn sigmoid_gate(&mut self, x: Register, gate: Register);
        fn convolve(&mut self, layer: LayerId, weight: VectorId);
        fn delta_rule(&mut self, layer: LayerId, decay_rate: VectorId, decay_bias: VectorId);
        fn gated_norm(&mut self, weight: VectorId);
        fn norm_linear(&mut self, norm: VectorId, products: &[(MatrixId, Register)]);
        fn delta_output(&mut self, norm: VectorId, matrix: MatrixId);
        fn attend_heads(&mut self, layer: LayerId, gated: bool, query_norm: VectorId, key_norm: VectorId);
        fn attend_biased(&mut self, layer: LayerId, biases: [VectorId; 3], sinks: Option<VectorId>) -> bool;
        fn attention_output(&mut self, gated: bool, matrix: MatrixId);
        fn norm_dense(&mut self, norm: VectorId, dense: &Dense);
        fn logits(&mut self, tokens: &[usize], norm: VectorId, head: MatrixId) -> Result<&mut [f32], EngineError>;
        fn most_likely(&mut self, token: usize, norm: VectorId, head: MatrixId) -> Option<Result<u32, EngineError>>;
        fn ranked_logits(&mut self, start: usize, out: &mut [f32]) -> Result<(), EngineError>;
    }

    questions! {
        fn sequence_length(&self, sequence: SequenceId) -> usize;
        fn room(&self) -> Room;
        fn batch_pages(&self, tokens: usize) -> usize;
        fn snapshot_pages(&self, sequence: SequenceId, length: usize) -> usize;
        fn cut_tokens(&self) -> usize;
        fn answers_replay(&self) -> bool;
        fn check_files(&self) -> Result<(), EngineError>;
        fn counters(&self) -> StoreCounters;
    }

    fn delta_inputs(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixed: MatrixId,
        others: &[(MatrixId, Register)],
        convolution: VectorId,
    ) {
        self.trip.at("delta_inputs", When::Before);
        self.inner.delta_inputs(layer, norm, mixed, others, convolution);
        self.trip.at("delta_inputs", When::After);
    }

    fn mixture(
        &mut self,
        layer: LayerId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.trip.at("mixture", When::Before);
        let done = self.inner.mixture(layer, mixture, &Asked(cancel, &self.trip, "mixture"));
        self.trip.at("mixture", When::After);
        done
    }

    fn norm_mixture(
        &mut self,
        layer: LayerId,
        norm: VectorId,
        mixture: &Mixture,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        self.trip.at("norm_mixture", When::Before);
        let asked = Asked(cancel, &self.trip, "norm_mixture");
        let done = self.inner.norm_mixture(layer, norm, mixture, &asked);
        self.trip.at("norm_mixture", When::After);
        done
    }

    fn rank(
        &mut self,
        token: usize,
        norm: VectorId,
        head: MatrixId,
        wanted: Wanted,
        out: &mut Ranked,
    ) -> Option<Result<(), EngineError>> {
        self.trip.at("rank", When::Before);
        let ranked = self.inner.rank(token, norm, head, wanted, out);
        self.trip.at("rank", When::After);
        ranked
    }

    fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.trip.at("recover", When::Before);
        self.inner.recover(live)
    }
}
