//! A batch that runs layer by layer, with one device or several, and can be put aside between two layers: the engine's
//! thread says what comes next and waits for it. Of several stages no other batch may be under way.

use std::sync::Arc;

use store::LayerId;

use super::pipeline::Pipeline;
use super::worker::{Worker, shared};
use super::{Inner, Stages, joined_marks};
use crate::EngineError;
use crate::backend::{Cancel, Incoming, Purpose, Run, SequenceId, Suspended};
use crate::model::Model;
use crate::model::program;
use crate::weights::{MatrixId, TableId};

/// A batch put aside, on every stage.
#[derive(Debug)]
pub struct PutAside {
    stages: Vec<Suspended>,
    runs: Vec<(SequenceId, usize)>,
}

/// What is known of the batch in progress.
pub(super) struct InPass {
    embedding: MatrixId,
    /// The layers whose experts token ids decide.
    given: Vec<(LayerId, TableId)>,
    /// Its runs and their tokens, of several stages.
    runs: Vec<(SequenceId, usize)>,
    /// What goes from one stage to the next.
    residual: Vec<f32>,
    /// What the next operation reports.
    failure: Option<EngineError>,
}

impl InPass {
    pub(super) fn new(model: &Model) -> Self {
        let (embedding, given) = (model.embedding, model.program.given_layers());
        Self { embedding, given, runs: Vec::new(), residual: Vec::new(), failure: None }
    }
}

/// Batches of one stage, or layer by layer.
impl Stages {
    /// Starts a batch on every stage, and the reads that its tokens decide.
    ///
    /// # Errors
    /// A batch that the plan does not allow, or others are under way.
    pub(crate) fn begin(&mut self, runs: &[Run<'_>], purpose: Purpose) -> Result<(), EngineError> {
        let Self { inner, pass, .. } = self;
        pass.failure = None;
        let pipeline = match inner {
            Inner::One(stage) => {
                stage.backend.begin(runs, purpose)?;
                if !pass.given.is_empty() {
                    stage.backend.expect_given(&pass.given);
                }
                return Ok(());
            }
            Inner::Several(pipeline) => pipeline,
        };
        if pipeline.is_busy() {
            let found =
                "other batches are under way: this one cannot run layer by layer".to_owned();
            return Err(EngineError::Request(found));
        }
        pipeline.release();
        runs.iter().try_for_each(|run| pipeline.keep_now(run.sequence))?;
        let own: Vec<_> = runs.iter().map(|run| (run.sequence, run.tokens.to_vec())).collect();
        let own = Arc::new(own);
        pass.runs = runs.iter().map(|run| (run.sequence, run.tokens.len())).collect();
        pipeline.all(&[], |_| {
            let own = Arc::clone(&own);
            move |worker: &mut Worker| {
                let runs = own.iter().map(|(sequence, tokens)| Run { sequence: *sequence, tokens });
                worker.begin_batch(&runs.collect::<Vec<_>>(), purpose)
            }
        })?;
        Ok(())
    }

    /// Asks for a snapshot at the end of one run of the batch.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn mark(&mut self, run: usize) -> Result<(), EngineError> {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.sequences_mut().mark(run),
            Inner::Several(pipeline) => pipeline
                .all(&[], |_| move |worker: &mut Worker| worker.backend().sequences_mut().mark(run))
                .map(|_| ()),
        }
    }

    /// [`crate::backend::Backend::embed`] of the first stage.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn embed(&mut self) -> Result<(), EngineError> {
        let table = self.pass.embedding;
        match &mut self.inner {
            Inner::One(stage) => {
                stage.backend.embed(table);
                Ok(())
            }
            Inner::Several(pipeline) => pipeline.on(0, &[], move |worker| {
                worker.backend().embed(table);
                Ok(())
            }),
        }
    }

    /// [`crate::backend::Backend::run_stage`] of the stage that has the layer, which takes the residual stream over
    /// from the stage before if it is its first.
    ///
    /// # Errors
    /// As [`crate::backend::Backend::run_stage`], or a device failed.
    pub(crate) fn run_stage(
        &mut self,
        layer: LayerId,
        stage: program::Stage,
        cancel: &dyn Cancel,
    ) -> Result<(), EngineError> {
        let Self { inner, pass, .. } = self;
        let pipeline = match inner {
            Inner::One(one) => return one.backend.run_stage(layer, stage, cancel),
            Inner::Several(pipeline) => pipeline,
        };
        if let Some(error) = pass.failure.take() {
            return Err(error);
        }
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let ranges: Vec<_> = pipeline.ranges().collect();
        let index = ranges.partition_point(|layers| layers.end <= layer.index());
        let touched: Vec<_> = pass.runs.iter().map(|(sequence, _)| *sequence).collect();
        let first = ranges[index].start == layer.index() && stage == program::Stage::Mixer;
        if index > 0 && first {
            let mut residual = std::mem::take(&mut pass.residual);
            let residual = pipeline.on(index - 1, &touched, move |worker| {
                worker.backend().read_residual(&mut residual)?;
                Ok(residual)
            })?;
            pass.residual = pipeline.on(index, &touched, move |worker| {
                worker.backend().write_residual(Incoming::Values(&residual))?;
                Ok(residual)
            })?;
        }
        pipeline.on(index, &touched, move |worker| {
            worker.backend().run_stage(layer, stage, &crate::backend::Uncancelled)
        })
    }

    /// [`crate::backend::Backend::check_files`] of every stage.
    ///
    /// # Errors
    /// The file that was cut or written to.
    pub(crate) fn check_files(&mut self) -> Result<(), EngineError> {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.check_files(),
            Inner::Several(pipeline) => pipeline
                .all(&[], |_| |worker: &mut Worker| worker.backend().check_files())
                .map(|_| ()),
        }
    }

    /// Ends the batch: its tokens are now part of their sequences.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn commit(&mut self) -> Result<(), EngineError> {
        let Self { inner, pass, .. } = self;
        let pipeline = match inner {
            Inner::One(stage) => {
                stage.backend.commit();
                return Ok(());
            }
            Inner::Several(pipeline) => pipeline,
        };
        let marks = pipeline.all(&[], |_| {
            |worker: &mut Worker| {
                worker.backend().commit();
                Ok(shared(worker.backend().sequences_mut().take_marks()))
            }
        })?;
        pipeline.marks.extend(joined_marks(marks));
        for (sequence, tokens) in pass.runs.drain(..) {
            let length = pipeline.length(sequence) + tokens;
            pipeline.set_length(sequence, length);
        }
        Ok(())
    }

    /// [`crate::backend::Backend::give_up`] of every stage.
    pub(crate) fn give_up(&mut self, layer: LayerId) {
        match &mut self.inner {
            Inner::One(stage) => stage.backend.give_up(layer),
            Inner::Several(pipeline) => {
                // Nothing of that can fail.
                _ = pipeline.all(&[], |_| {
                    move |worker: &mut Worker| {
                        worker.backend().give_up(layer);
                        Ok(())
                    }
                });
            }
        }
    }

    /// Puts the batch in progress aside; `None` where the devices have to finish it first.
    pub(crate) fn suspend(&mut self) -> Option<PutAside> {
        let Self { inner, pass, .. } = self;
        let pipeline = match inner {
            Inner::One(stage) => {
                let stages = vec![stage.backend.suspend()?];
                return Some(PutAside { stages, runs: Vec::new() });
            }
            Inner::Several(pipeline) => pipeline,
        };
        let aside = pipeline.all(&[], |_| |worker: &mut Worker| Ok(worker.backend().suspend()));
        let aside = match aside {
            Ok(aside) => aside,
            Err(error) => {
                pass.failure = Some(error);
                return None;
            }
        };
        if aside.iter().all(Option::is_some) {
            let stages = aside.into_iter().flatten().collect();
            return Some(PutAside { stages, runs: std::mem::take(&mut pass.runs) });
        }
        // The batch goes on. What a device cannot take up again, its next operation reports.
        pass.failure = resume(pipeline, aside).err();
        None
    }

    /// Goes on with a batch that was put aside; no other is in progress.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn resume(&mut self, aside: PutAside) -> Result<(), EngineError> {
        let Self { inner, pass, .. } = self;
        let PutAside { stages, runs } = aside;
        match inner {
            Inner::One(stage) => {
                stages.into_iter().try_for_each(|suspended| stage.backend.resume(suspended))
            }
            Inner::Several(pipeline) => {
                pipeline.release();
                pass.runs = runs;
                resume(pipeline, stages.into_iter().map(Some).collect())
            }
        }
    }
}

/// Has each stage go on with what it put aside, if it did.
fn resume(pipeline: &mut Pipeline, mut aside: Vec<Option<Suspended>>) -> Result<(), EngineError> {
    let resumed = pipeline.all(&[], |index| {
        let own = aside[index].take();
        move |worker: &mut Worker| own.map_or(Ok(()), |own| worker.backend().resume(own))
    });
    resumed.map(|_| ())
}
