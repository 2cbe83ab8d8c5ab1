//! A device that computes nothing and takes a fixed time for each batch: what it measures is who waits for whom. It
//! counts how many of its kind are busy at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::EngineError;
use engine::backend::{
    Backend, Cancel, Incoming, LayerBorder, Purpose, Run, SequenceDevice, SequenceId, Sequences,
    SnapshotPart, Suspended,
};
use engine::model::program::{Program, Stage};
use engine::weights::{MatrixId, VectorId};
use store::LayerId;
use store::cache::StoreCounters;

use crate::engine_support::{Between, Device};

/// How long a batch takes on each stage, and how many stages were busy.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) delay: Duration,
    busy: AtomicUsize,
    most: AtomicUsize,
}

impl Pace {
    pub(crate) fn new(delay: Duration) -> Arc<Self> {
        Arc::new(Self { delay, busy: AtomicUsize::new(0), most: AtomicUsize::new(0) })
    }

    /// Most stages that were busy at the same time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// What puts such a device before each stage's.
    pub(crate) fn between(self: &Arc<Self>) -> Between {
        let pace = Arc::clone(self);
        let before = move |inner| Box::new(Paced { inner, pace: Arc::clone(&pace), due: false });
        Between(Some(Arc::new(move |inner| before(inner) as Device)))
    }
}

struct Paced {
    inner: Device,
    pace: Arc<Pace>,
    /// Whether the batch has not taken its time yet.
    due: bool,
}

impl SequenceDevice for Paced {
    fn create_sequence(&mut self, home: Option<SequenceId>) -> Result<SequenceId, EngineError> {
        self.inner.create_sequence(home)
    }

    fn sequences(&self) -> &Sequences {
        self.inner.sequences()
    }

    fn sequences_mut(&mut self) -> &mut Sequences {
        self.inner.sequences_mut()
    }

    fn take_snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotPart, EngineError> {
        self.inner.take_snapshot(sequence)
    }

    fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &SnapshotPart,
    ) -> Result<(), EngineError> {
        self.inner.restore(sequence, snapshot)
    }

    fn suspend(&mut self) -> Option<Suspended> {
        self.inner.suspend()
    }

    fn resume(&mut self, suspended: Suspended) -> Result<(), EngineError> {
        self.inner.resume(suspended)
    }
}

impl Backend for Paced {
    fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        self.due = true;
        self.inner.begin(runs, purpose)
    }

    fn run_stage(&mut self, _: LayerId, _: Stage, _: &dyn Cancel) -> Result<(), EngineError> {
        if std::mem::take(&mut self.due) {
            let busy = self.pace.busy.fetch_add(1, Ordering::SeqCst) + 1;
            self.pace.most.fetch_max(busy, Ordering::SeqCst);
            std::thread::sleep(self.pace.delay);
            self.pace.busy.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn embed(&mut self, table: MatrixId) {
        self.inner.embed(table);
    }

    fn prepare(&mut self, program: Arc<Program>) {
        self.inner.prepare(program);
    }

    fn logits(
        &mut self,
        tokens: &[usize],
        norm: Option<VectorId>,
        head: MatrixId,
    ) -> Result<&mut [f32], EngineError> {
        self.inner.logits(tokens, norm, head)
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }
}

impl LayerBorder for Paced {
    fn read_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        self.inner.read_residual(to)
    }

    fn write_residual(&mut self, from: Incoming<'_>) -> Result<(), EngineError> {
        self.inner.write_residual(from)
    }
}
