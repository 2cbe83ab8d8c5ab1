//! One layer of a batch on one device: its two stages, their names in the timeline and their times.

use std::time::Instant;

use store::{LayerId, timeline};

use crate::EngineError;
use crate::backend::Cancel;
use crate::model::Clock;
use crate::model::config::{FeedForward, Mixer};
use crate::model::program::{Program, Stage};

/// Runs a batch through one layer, which may be cancelled between its stages.
pub(crate) fn run_layer(
    program: &Program,
    clock: &Clock,
    index: usize,
    cancel: &dyn Cancel,
    run: &mut dyn FnMut(LayerId, Stage) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let (layer, program) = (LayerId(index as u16), &program.layers[index]);
    let number = [("layer", index as u64), ("", 0), ("", 0)];
    let mixer = match program.spec.mixer {
        Mixer::DeltaNet => &clock.delta_net,
        Mixer::Attention | Mixer::Latent | Mixer::Compressed(_) => &clock.attention,
    };
    let feed_forward = match program.spec.feed_forward {
        FeedForward::Mixture => "mixture",
        FeedForward::Dense { .. } => "dense",
        FeedForward::Both { .. } => "dense and mixture",
    };
    let parts = [(program.mixer_name(), mixer), (feed_forward, &clock.mixture)];
    let mut begun = Instant::now();
    for (stage, (name, sum)) in Stage::ALL.into_iter().zip(parts) {
        if stage == Stage::FeedForward && cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let _span = timeline::span(name, number);
        let done = run(layer, stage);
        begun = Clock::add(sum, begun);
        done?;
    }
    Ok(())
}
