//! The lists of launches that a device makes of a program, once: by kind of batch, layer and stage.

use std::ops::Range;

use store::LayerId;

use crate::model::program::{LayerProgram, Op, Program, Stage};

/// What the operations of each layer become in batches of one kind, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The kind of batch.
    pub batch: &'static str,
    /// The launches of each layer.
    pub layers: Vec<Vec<String>>,
}

/// Lists of launches.
pub(super) struct Prepared<Launch> {
    kinds: Vec<Vec<[Vec<Launch>; 2]>>,
}

impl<Launch> Default for Prepared<Launch> {
    fn default() -> Self {
        Self { kinds: Vec::new() }
    }
}

impl<Launch> Prepared<Launch> {
    /// Lists for each of `kinds`, of the layers that a device computes. `first` is a device's table: what the first
    /// operations of a list become in a layer of a batch of a kind, and how many they are.
    pub(super) fn new<Kind: Copy>(
        program: &Program,
        computed: &Range<usize>,
        kinds: &[Kind],
        first: impl Fn(Kind, LayerId, &[Op]) -> (Launch, usize),
    ) -> Self {
        let launches = |kind, layer, mut ops: &[Op]| {
            let mut launches = Vec::new();
            while !ops.is_empty() {
                let (launch, count) = first(kind, layer, ops);
                launches.push(launch);
                ops = &ops[count..];
            }
            launches
        };
        let layers = |&kind: &Kind| {
            let of = |(index, layer): (usize, &LayerProgram)| {
                let id = LayerId(index as u16);
                Stage::ALL.map(|stage| match computed.contains(&index) {
                    true => launches(kind, id, layer.stage(stage)),
                    false => Vec::new(),
                })
            };
            program.layers.iter().enumerate().map(of).collect()
        };
        Self { kinds: kinds.iter().map(layers).collect() }
    }

    /// The launches of a stage; `kind` counts those of [`Prepared::new`].
    pub(super) fn of(&self, kind: usize, layer: LayerId, stage: Stage) -> &[Launch] {
        &self.kinds[kind][layer.index()][stage as usize]
    }

    /// All lists in words, with the names of the kinds.
    pub(super) fn listings(
        &self,
        names: &[&'static str],
        describe: impl Fn(&Launch) -> String,
    ) -> Vec<Listing> {
        let layer = |stages: &[Vec<Launch>; 2]| stages.iter().flatten().map(&describe).collect();
        let layers = self.kinds.iter().map(|layers| layers.iter().map(layer).collect());
        names.iter().zip(layers).map(|(&batch, layers)| Listing { batch, layers }).collect()
    }
}
