//! Matrices that are not a tensor as it lies in a file: made of one or two when they are loaded, and kept in memory, so
//! that no device meets the tensors' own order.

use std::ops::Range;

use kernels::format::{Encoding, FloatType, Matrix, decode_row};
use store::format::Tensor;

/// How a matrix is made of a tensor's rows.
#[derive(Clone, Debug)]
pub(super) enum Derived {
    /// These rows, from first to last.
    Rows(Vec<Range<usize>>),
    /// Blocks of as many rows each: of each block its columns as rows.
    Transposed(Vec<Range<usize>>),
    /// All rows, and behind them those of another tensor, in its encoding.
    Followed(Box<Tensor>, Encoding),
}

impl Derived {
    /// The encoding, of a tensor in `encoding`. Groups of values do not survive the turn, nor do tiles that rows are
    /// cut from; floats keep their type.
    pub(super) fn encoding(&self, encoding: Encoding) -> Encoding {
        match (self, encoding) {
            (Self::Followed(_, behind), _) => match *behind == encoding && !shares(encoding) {
                true => encoding,
                false => Encoding::Float(FloatType::F32),
            },
            (_, Encoding::Float(_)) => encoding,
            (Self::Rows(runs), _) if !cut_tiles(runs, encoding) => encoding,
            _ => Encoding::Float(FloatType::F32),
        }
    }

    /// Weight, scales and biases, of the tensor `from`, and of the one behind it where there is one.
    pub(super) fn planes(&self, from: &Matrix<'_>, behind: Option<&Matrix<'_>>) -> [Vec<u8>; 3] {
        let (encoding, columns) = (from.encoding, from.columns);
        match (self, encoding) {
            (Self::Followed(..), _) => {
                let both: Vec<_> = [Some(from), behind].into_iter().flatten().collect();
                joined(&both, self.encoding(encoding) == encoding)
            }
            (Self::Rows(runs), _) if cut_tiles(runs, encoding) => {
                let mut values = vec![0.0; columns];
                let mut out = Vec::new();
                for row in runs.iter().flat_map(Range::clone) {
                    decode_row(from, row, &mut values);
                    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }
                [out, Vec::new(), Vec::new()]
            }
            (Self::Rows(runs), _) => {
                let planes = [from.weight, from.scales, from.biases];
                std::array::from_fn(|plane| {
                    if encoding.shared_bytes()[plane] > 0 {
                        return planes[plane].to_vec();
                    }
                    let runs = runs.iter().map(|run| {
                        let places = encoding.part_bytes(run.start, run.len(), columns);
                        &planes[plane][places[plane].0..places[plane].1]
                    });
                    runs.flatten().copied().collect()
                })
            }
            (Self::Transposed(blocks), Encoding::Float(float)) => {
                let size = float.bytes();
                let mut out = Vec::with_capacity(from.weight.len());
                for block in blocks {
                    for column in 0..columns {
                        for row in block.clone() {
                            let at = (row * columns + column) * size;
                            out.extend_from_slice(&from.weight[at..at + size]);
                        }
                    }
                }
                [out, Vec::new(), Vec::new()]
            }
            (Self::Transposed(blocks), _) => {
                let mut out = Vec::new();
                let mut values = Vec::new();
                for block in blocks {
                    values.resize(block.len() * columns, 0.0);
                    for (row, values) in block.clone().zip(values.chunks_exact_mut(columns)) {
                        decode_row(from, row, values);
                    }
                    for column in 0..columns {
                        let values = values.iter().skip(column).step_by(columns);
                        out.extend(values.flat_map(|value| value.to_le_bytes()));
                    }
                }
                [out, Vec::new(), Vec::new()]
            }
        }
    }
}

/// The planes of matrices one behind the other, as they are or in binary32.
fn joined(matrices: &[&Matrix<'_>], as_they_are: bool) -> [Vec<u8>; 3] {
    if as_they_are {
        let planes =
            |it: &Matrix<'_>, plane: usize| [it.weight, it.scales, it.biases][plane].to_vec();
        return std::array::from_fn(|plane| {
            matrices.iter().flat_map(|it| planes(it, plane)).collect()
        });
    }
    let rows = matrices.iter().flat_map(|it| (0..it.rows).map(move |row| (it, row)));
    let mut out = Vec::new();
    for (matrix, row) in rows {
        let mut values = vec![0.0; matrix.columns];
        decode_row(matrix, row, &mut values);
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    [out, Vec::new(), Vec::new()]
}

/// Whether rows share scales, or the whole matrix a number: two such matrices are not one.
fn shares(encoding: Encoding) -> bool {
    encoding.rows_per_scale() > 1 || encoding.shared_bytes() != [0; 3]
}

/// Whether runs of rows part rows that share scales.
fn cut_tiles(runs: &[Range<usize>], encoding: Encoding) -> bool {
    let shared = encoding.rows_per_scale();
    runs.iter().any(|run| run.start % shared != 0 || run.end % shared != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::format::ScaleType;
    use store::format::{Extent, FileId};

    /// Whole tiles stay what they are; rows of parts of them are decoded.
    #[test]
    fn rows_of_tiles_are_kept_or_decoded() {
        let encoding = Encoding::Fp8 { scale: ScaleType::E8m0 };
        let weight: Vec<u8> = (0..300 * 2).map(|i| (i % 0x7f) as u8).collect();
        let from = Matrix::new(encoding, 300, 2, &weight, &[126, 127, 128], &[]).unwrap();
        let whole = Derived::Rows(vec![128..256, 0..128]);
        assert_eq!(whole.encoding(encoding), encoding);
        let [values, scales, _] = whole.planes(&from, None);
        assert!(values == [&weight[256..512], &weight[..256]].concat() && scales == [127, 126]);
        let parts = Derived::Rows(vec![100..130, 299..300]);
        assert_eq!(parts.encoding(encoding), Encoding::Float(FloatType::F32));
        let [out, scales, _] = parts.planes(&from, None);
        let found: Vec<f32> = out.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        let mut row = [0.0; 2];
        decode_row(&from, 299, &mut row);
        assert!(found.len() == 62 && found[60..] == row && scales.is_empty());
    }

    /// Two blocks of the rows 0..2 and 3..5 of a matrix of five by three.
    #[test]
    fn blocks_are_turned_each_by_itself() {
        let floats: Vec<u8> = (0..15).flat_map(|v| (v as f32).to_le_bytes()).collect();
        let encoding = Encoding::Float(FloatType::F32);
        let from = Matrix::new(encoding, 5, 3, &floats, &[], &[]).unwrap();
        let [out, _, _] = Derived::Transposed(vec![0..2, 3..5]).planes(&from, None);
        let found: Vec<f32> = out.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        assert_eq!(found, [0., 3., 1., 4., 2., 5., 9., 12., 10., 13., 11., 14.]);
    }

    /// Rows of one encoding stay what they are; a matrix of another encoding behind them makes all floats.
    #[test]
    fn rows_of_two_tensors_are_kept_or_decoded() {
        let extent = |length| Extent { file: FileId(0), offset: 0, length };
        let tensor = |float: FloatType, bytes| Tensor {
            shape: vec![1, 2],
            element: Encoding::Float(float).into(),
            weight: extent(bytes),
            scales_biases: None,
        };
        let (half, single) = (Encoding::Float(FloatType::Bf16), Encoding::Float(FloatType::F32));
        let from = Matrix::new(half, 2, 2, &[0, 0, 0x80, 0x3f, 0, 0x40, 0x40, 0x40], &[], &[]);
        let from = from.unwrap();
        let same = Derived::Followed(Box::new(tensor(FloatType::Bf16, 4)), half);
        let behind = Matrix::new(half, 1, 2, &[0x80, 0x40, 0xa0, 0x40], &[], &[]).unwrap();
        assert_eq!(same.encoding(half), half);
        let [out, ..] = same.planes(&from, Some(&behind));
        assert_eq!(out, [from.weight, behind.weight].concat());
        let other = Derived::Followed(Box::new(tensor(FloatType::F32, 8)), single);
        let bytes: Vec<u8> = [4_f32, 5.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let behind = Matrix::new(single, 1, 2, &bytes, &[], &[]).unwrap();
        assert_eq!(other.encoding(half), single);
        let [out, ..] = other.planes(&from, Some(&behind));
        let found: Vec<f32> = out.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
