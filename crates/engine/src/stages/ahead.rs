//! Steps that a stage begins while the stage before computes them. A stage that has nothing else to do does all that
//! needs no residual, and a device that can wait for another has the whole step queued behind it: no thread is between
//! them. The last stage serves its step before anything is asked of it.
//!
//! It changes no bit, and what fails is known as before: a step that the stage before ends with a failure is given up
//! here, and its sequences are undefined.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::RecvError;

use super::batch::{Failure, Message, Order, Ticket};
use super::worker::Worker;
use crate::backend::{Crossing, Incoming};

/// How far a step is that was begun ahead of what the stage before leaves.
pub(super) enum Ahead {
    /// It lacks that.
    Begun,
    /// It is computed behind the stage before.
    Computed,
    /// Before this layer.
    Failed(usize, Failure),
}

impl Worker {
    /// Serves the last stage's step before anything is asked of it.
    pub(super) fn await_step(&mut self) {
        if self.holds.is_some() {
            _ = self.guarded(&[], |it| {
                it.fittings.backend.await_step();
                Ok(())
            });
        }
    }

    /// All layers of a step that was begun; a device that computes it by itself has it under way then. What comes of
    /// that the next stage may await.
    pub(super) fn compute(&mut self, order: &Arc<Order>) -> Result<(), (usize, Failure)> {
        // A connection takes 20 us, which a device that computes by itself need not wait for.
        let next = self.fittings.next.clone();
        let later =
            next.as_ref().is_some_and(|it| !it.is_here()) && self.fittings.backend.rules().spins;
        let announce = || {
            if let Some(next) = &next {
                next.send(Message::Ahead(Arc::clone(order)));
            }
        };
        if !later {
            announce();
        }
        for layer in self.fittings.layers.clone() {
            self.layer(order, layer).map_err(|failure| (layer, failure))?;
        }
        self.commit(order).map_err(|failure| (self.fittings.layers.end, failure))?;
        if later {
            announce();
        }
        if let Some(next) = &next
            && let Some(crossing) = self.fittings.backend.residual_ahead()
        {
            next.send(Message::Follow(order.ticket, crossing));
        }
        Ok(())
    }

    /// A step that the stage before computes: it is begun where there is nothing else to do, now or when nothing more
    /// is asked of the batch that the device holds.
    pub(super) fn note_coming(&mut self, order: Arc<Order>) {
        if self.is_idle() {
            self.coming = Some((order, None));
            self.begin_coming();
        }
    }

    /// What the step will leave that was announced last.
    pub(super) fn note_crossing(&mut self, ticket: Ticket, crossing: Crossing) {
        if let Some((order, known)) = &mut self.coming
            && order.ticket == ticket
        {
            *known = Some(crossing);
        }
    }

    /// Begins the step that was announced, and awaits it. What comes meanwhile waits until the step has ended here: the
    /// device is as for any step, so that nothing else may use it.
    pub(super) fn begin_coming(&mut self) {
        if self.holds.is_some() {
            return;
        }
        let Some((order, crossing)) = self.coming.take() else { return };
        if self.refused(&order).is_some() {
            return;
        }
        let order = &order;
        let mut ahead = match self.begin_here(order) {
            Ok(()) => crossing.map_or(Ahead::Begun, |crossing| self.follow(order, &crossing)),
            Err(failure) => Ahead::Failed(self.fittings.layers.start, failure),
        };
        let mut later = VecDeque::new();
        loop {
            match self.receive() {
                Ok(Message::Batch(moving)) if moving.order.ticket == order.ticket => {
                    if moving.failure.is_some() {
                        self.give_up(self.fittings.layers.start);
                        self.pass_on(moving);
                    } else {
                        self.step(moving, Some(ahead));
                    }
                    break;
                }
                Ok(Message::Follow(ticket, crossing)) if ticket == order.ticket => {
                    if matches!(ahead, Ahead::Begun) {
                        ahead = self.follow(order, &crossing);
                    }
                }
                Ok(message) => later.push_back(message),
                // Nothing can be asked of the device any more.
                Err(RecvError) => return,
            }
        }
        self.deferred = later;
    }

    /// Computes a step that was begun behind the stage before.
    fn follow(&mut self, order: &Arc<Order>, crossing: &Crossing) -> Ahead {
        let followed = self.guarded(&order.sequences(), |it| {
            it.fittings.backend.write_residual(Incoming::Ahead(crossing))
        });
        match followed {
            Ok(()) => match self.compute(order) {
                Ok(()) => Ahead::Computed,
                Err((layer, failure)) => Ahead::Failed(layer, failure),
            },
            Err(failure) => Ahead::Failed(self.fittings.layers.start, failure),
        }
    }
}
