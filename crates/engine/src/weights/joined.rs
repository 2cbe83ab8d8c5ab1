//! What files hold apart and kernels read together: matrices of two tensors, and vectors that devices which bind few
//! buffers hold in one.

use std::ops::Range;

use kernels::format::{Encoding, Matrix};
use store::format::Tensor;
use store::trunk::Trunk;

use super::derived::Derived;
use super::{Catalog, MatrixId, MatrixPlace, VectorId, lying, values};
use crate::EngineError;

impl MatrixPlace {
    /// The tensor whose rows follow, and its encoding.
    pub(super) fn followed(&self) -> Option<(&Tensor, Encoding)> {
        match &self.derived {
            Some(Derived::Followed(tensor, encoding)) => Some((tensor, *encoding)),
            _ => None,
        }
    }

    /// That tensor as it lies in the trunk.
    pub(super) fn behind<'t>(&self, trunk: &'t Trunk) -> Option<Matrix<'t>> {
        self.followed().map(|(tensor, encoding)| lying(tensor, encoding, trunk))
    }
}

impl Catalog<'_> {
    /// Declares a matrix of the rows of one tensor and behind them those of another: names, and rows of each. It is
    /// made when it is loaded; where the two have encodings of their own, or rows share scales, it becomes binary32.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn followed(
        &mut self,
        [name, behind]: [&str; 2],
        [rows, more]: [usize; 2],
        columns: usize,
    ) -> Result<MatrixId, EngineError> {
        let other = self.shaped(behind, more, columns)?;
        let tensor = self.shaped(name, rows, columns)?;
        let encoding = values(name, &tensor)?;
        let derived = Derived::Followed(Box::new(other.clone()), values(behind, &other)?);
        let (name, rows, part) = (name.to_owned(), rows + more, self.part);
        let derived = Some(derived);
        Ok(self.push(MatrixPlace { name, rows, columns, tensor, encoding, derived, part }))
    }

    /// Says that a vector and the one declared before it are read together: a device whose kernels bind few buffers
    /// holds both in one.
    pub fn join(&mut self, vector: VectorId) {
        assert!(vector.0 > 0, "the first vector follows no other");
        self.vectors[vector.index()].joined = true;
    }

    /// Vectors that are held in one buffer: runs of their numbers, and values of each run; 0 of those that are not
    /// loaded.
    pub fn vector_runs(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        let lengths = self.vectors.iter().zip(self.loaded_lengths());
        for (index, (place, values)) in lengths.enumerate() {
            match runs.last_mut().filter(|_| place.joined) {
                Some((run, length)) => {
                    run.end += 1;
                    *length += values;
                }
                None => runs.push((index..index + 1, values)),
            }
        }
        runs.into_iter()
    }
}
