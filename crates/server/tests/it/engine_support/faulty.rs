//! A backend that panics where it is told to: before an operation of another, after it, or when a mixture asks whether
//! it is still wanted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::EngineError;
use engine::backend::{
    Backend, BatchRules, Cancel, Incoming, LayerBorder, Purpose, Ranking, Run, SequenceDevice,
    SequenceId, Sequences, SnapshotPart, Suspended,
};
use engine::model::program::{Program, Stage};
use engine::weights::{MatrixId, TableId, VectorId};
use store::LayerId;
use store::cache::StoreCounters;
use text::sampling::{Ranked, Wanted};

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
    /// How long the backend takes to go.
    lingers: Duration,
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

    /// How long the backend takes to go, as a device's memory does.
    pub(crate) fn linger(&self, time: Duration) {
        self.state().lingers = time;
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
        self.before_each(None)
    }

    /// The same, which asks for prompts of up to `tokens` tokens in one batch.
    pub(crate) fn between_joint(self: &Arc<Self>, tokens: usize) -> Between {
        self.before_each(Some(tokens))
    }

    fn before_each(self: &Arc<Self>, joint: Option<usize>) -> Between {
        let trip = Arc::clone(self);
        let before = move |inner| {
            let (trip, program) = (Arc::clone(&trip), Arc::default());
            Box::new(Faulty { inner, trip, program, joint }) as Device
        };
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
    program: Arc<Program>,
    /// What it says of prompts in one batch, if not what the other says.
    joint: Option<usize>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        let time = self.trip.state().lingers;
        std::thread::sleep(time);
    }
}

/// Operations that are passed on to a part of the device, with a place for a panic before and after each.
macro_rules! operations {
    ($part:ident: $(fn $name:ident(&mut self $(, $value:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {$(
        fn $name(&mut self $(, $value: $kind)*) $(-> $result)? {
            let trip = Arc::clone(&self.trip);
            trip.at(stringify!($name), When::Before);
            let result = self.$part().$name($($value),*);
            trip.at(stringify!($name), When::After);
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

impl Faulty {
    fn device(&mut self) -> &mut Device {
        &mut self.inner
    }

    fn ranks(&mut self) -> &mut dyn Ranking {
        self.inner.ranking().expect("it is asked for where there is one")
    }
}

impl Backend for Faulty {
    fn rules(&self) -> BatchRules {
        self.trip.at("rules", When::Before);
        let rules = self.inner.rules();
        BatchRules { joint_tokens: self.joint.unwrap_or(rules.joint_tokens), ..rules }
    }

    operations! { device:
        fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError>;
        fn expect_given(&mut self, layers: &[(LayerId, TableId)]);
        fn give_up(&mut self, layer: LayerId);
        fn commit(&mut self);
        fn embed(&mut self, table: MatrixId);
        fn logits(&mut self, tokens: &[usize], norm: Option<VectorId>, head: MatrixId)
            -> Result<&mut [f32], EngineError>;
    }

    questions! {
        fn check_files(&self) -> Result<(), EngineError>;
        fn counters(&self) -> StoreCounters;
    }

    fn ranking(&mut self) -> Option<&mut dyn Ranking> {
        self.inner.ranking()?;
        Some(self)
    }

    fn prepare(&mut self, program: Arc<Program>) {
        self.program = program;
    }

    /// The operations of the stage one by one, each as a program of its own.
    fn run_stage(
        &mut self,
        layer: LayerId,
        stage: Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let whole = Arc::clone(&self.program);
        for op in whole.layers[layer.index()].stage(stage) {
            let mut one = Program::clone(&whole);
            let of_layer = &mut one.layers[layer.index()];
            let list = match stage {
                Stage::Mixer => &mut of_layer.mixer,
                Stage::FeedForward => &mut of_layer.feed_forward,
            };
            *list = vec![op.clone()];
            self.inner.prepare(Arc::new(one));
            let name = op.name();
            self.trip.at(name, When::Before);
            self.inner.run_stage(layer, stage, &Asked(cancel, &self.trip, name))?;
            self.trip.at(name, When::After);
        }
        Ok(())
    }

    fn recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.trip.at("recover", When::Before);
        self.inner.recover(live)
    }
}

impl SequenceDevice for Faulty {
    operations! { device:
        fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError>;
        fn sequences_mut(&mut self) -> &mut Sequences;
        fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError>;
        fn restore(&mut self, sequence: SequenceId, snapshot: &SnapshotPart) -> Result<(), EngineError>;
        fn keep_first(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError>;
        fn suspend(&mut self) -> Option<Suspended>;
        fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError>;
    }

    questions! {
        fn sequences(&self) -> &Sequences;
    }
}

impl LayerBorder for Faulty {
    operations! { device:
        fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError>;
        fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError>;
    }
}

impl Ranking for Faulty {
    operations! { ranks:
        fn expect_rows(&mut self, rows: &[usize]);
        fn most_likely(&mut self, token: usize, norm: Option<VectorId>, head: MatrixId)
            -> Result<u32, EngineError>;
        fn rank(&mut self, token: usize, norm: Option<VectorId>, head: MatrixId, wanted: Wanted, out: &mut Ranked)
            -> Option<Result<(), EngineError>>;
        fn ranked_logits(&mut self, start: usize, out: &mut [f32]) -> Result<(), EngineError>;
    }
}
