//! Which of a model's weights a device with a range of its layers loads.
//!
//! All of a model is declared, in every stage: every check of names and shapes is made, and numbers of matrices are
//! the same everywhere. A device that computes a range of layers then loads theirs alone. The embedding is loaded with
//! the first layer, what is behind all layers (the norm and the head) with the last.

use std::ops::Range;

use kernels::format::Encoding;

use super::{Catalog, MatrixPlace};

/// The part of a model that a weight belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Before all layers.
    #[default]
    Before,
    /// A layer.
    Layer(usize),
    /// Behind all layers: with the last, which is this one.
    Behind(usize),
    /// Before and behind them: an embedding that is the head as well. The last layer is this one.
    Both(usize),
}

impl Part {
    /// Whether it is loaded with these layers, which `leave` what is behind the last to another device. No layers, at
    /// the end of the model, are what is behind the last.
    fn is_with(self, layers: &Range<usize>, leave: bool) -> bool {
        let behind = |last| match layers.is_empty() {
            true => layers.start == last + 1,
            false => layers.contains(&last) && !leave,
        };
        match self {
            Self::Before => layers.contains(&0),
            Self::Layer(layer) => layers.contains(&layer),
            Self::Behind(last) => behind(last),
            Self::Both(last) => layers.contains(&0) || behind(last),
        }
    }
}

impl Catalog<'_> {
    /// Says what is declared from now on.
    pub fn begin(&mut self, part: Part) {
        self.part = part;
    }

    /// Has these layers loaded and no others, with the first what is before all layers and with the last what is behind
    /// them. No layers, at the end of the model, are what is behind the last alone.
    pub fn restrict(&mut self, layers: Range<usize>) {
        self.loaded = Some(layers);
    }

    /// Has the last layer loaded without what is behind it, which another device has.
    pub fn leave_behind(&mut self) {
        self.leaves_behind = true;
    }

    /// The same declarations, to load these layers alone ([`Catalog::restrict`]).
    #[must_use]
    pub fn of_layers(&self, layers: Range<usize>) -> Self {
        let mut own = self.clone();
        own.restrict(layers);
        own
    }

    /// Whether a part is loaded.
    pub(super) fn loads(&self, part: Part) -> bool {
        self.loaded.as_ref().is_none_or(|layers| part.is_with(layers, self.leaves_behind))
    }

    /// Rows, columns and encoding of each matrix that is loaded, in order.
    pub fn loaded(&self) -> impl Iterator<Item = (usize, usize, Encoding)> {
        self.loaded_matrices().map(|place| (place.rows, place.columns, place.encoding()))
    }

    /// Values of each vector declared, in order; 0 of one that is not loaded.
    pub fn loaded_lengths(&self) -> impl Iterator<Item = usize> {
        self.vectors.iter().map(|place| if self.loads(place.part) { place.length } else { 0 })
    }

    /// The matrices that are loaded, in order.
    pub(super) fn loaded_matrices(&self) -> impl Iterator<Item = &MatrixPlace> {
        self.matrices.iter().filter(|place| self.loads(place.part))
    }
}
