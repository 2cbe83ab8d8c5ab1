//! The table of one layer's experts, from tensors of one expert each, of all of them, or of gate and up together.

use super::config::Dimensions;
use super::names::ExpertMatrix;
use super::{ExpertExtents, Extent, LayerExperts, Projection, ProjectionShape, Tensor};

/// Bytes of one matrix of an expert.
type Piece = (Extent, Option<(Extent, Extent)>);

/// Collects the experts of one layer.
pub(super) struct LayerBuilder {
    dimensions: Dimensions,
    shapes: [Option<ProjectionShape>; 3],
    pieces: Vec<[Option<Piece>; 3]>,
}

impl LayerBuilder {
    pub(super) fn new(dimensions: Dimensions) -> Self {
        Self { dimensions, shapes: [None; 3], pieces: vec![[None; 3]; dimensions.experts] }
    }

    /// Adds a tensor with one expert or all of them; an error is what is wrong with its shape.
    pub(super) fn add(
        &mut self,
        expert: Option<usize>,
        matrix: ExpertMatrix,
        tensor: &Tensor,
    ) -> Result<(), String> {
        let shape = &tensor.shape;
        let (first, count, rows, columns) = match (expert, &shape[..]) {
            (None, &[count, rows, columns]) if count == self.pieces.len() => {
                (0, count, rows, columns)
            }
            (Some(expert), &[rows, columns]) if expert < self.pieces.len() => {
                (expert, 1, rows, columns)
            }
            _ => {
                let experts = self.pieces.len();
                return Err(format!("shape {shape:?} in a model of {experts} experts"));
            }
        };
        let halves: &[Projection] = match &matrix {
            ExpertMatrix::One(projection) => std::slice::from_ref(projection),
            ExpertMatrix::GateUp => &[Projection::Gate, Projection::Up],
        };
        if rows % halves.len() != 0 {
            return Err(format!("shape {shape:?}: an odd number of rows for gate and up"));
        }
        let rows = rows / halves.len();
        let Some(encoding) = tensor.element.encoding() else {
            return Err(format!("holds {}, no values", tensor.element.name()));
        };
        if halves.len() > 1 && !rows.is_multiple_of(encoding.rows_per_scale()) {
            return Err(format!("shape {shape:?}: gate and up share a row of scales"));
        }
        for (half, &projection) in halves.iter().enumerate() {
            let shape = ProjectionShape { rows, columns, encoding };
            self.set_shape(projection, shape, halves.len())?;
            for index in 0..count {
                let part = index * halves.len() + half;
                let cut = |extent: Extent| {
                    let length = extent.length / (count * halves.len()) as u64;
                    Extent { offset: extent.offset + length * part as u64, length, ..extent }
                };
                let place = &mut self.pieces[first + index][projection as usize];
                if place.is_some() {
                    return Err("a second tensor for the same expert and projection".to_owned());
                }
                // What all rows of an expert share is that of gate and of up.
                let shared = encoding.shared_bytes();
                let cut = |extent: Extent, plane: usize| match shared[plane] as u64 {
                    0 => cut(extent),
                    length => {
                        Extent { offset: extent.offset + length * index as u64, length, ..extent }
                    }
                };
                let scales_biases = tensor.scales_biases.map(|(s, b)| (cut(s, 1), cut(b, 2)));
                *place = Some((cut(tensor.weight, 0), scales_biases));
            }
        }
        Ok(())
    }

    /// Checks the shape of a matrix, one of `parts` whose rows lie in one tensor.
    fn set_shape(
        &mut self,
        projection: Projection,
        shape: ProjectionShape,
        parts: usize,
    ) -> Result<(), String> {
        let (rows, columns) = self.dimensions.projection(projection);
        let ProjectionShape { rows: found_rows, columns: found_columns, .. } = shape;
        if (found_rows, found_columns) != (rows, columns) {
            let turned = (found_rows * parts, found_columns) == (columns, rows * parts);
            let turned = match turned {
                true => "; it is transposed: MLX copies of such models are not",
                false => "",
            };
            return Err(format!(
                "{projection:?} is [{found_rows}, {found_columns}]; hidden_size and \
                 moe_intermediate_size ask for [{rows}, {columns}]{turned}"
            ));
        }
        match self.shapes[projection as usize].replace(shape) {
            Some(other) if other != shape => Err(format!(
                "{projection:?} has another encoding than in the layer's other experts"
            )),
            _ => Ok(()),
        }
    }

    /// The finished table, or what is missing, as the end of a tensor name.
    pub(super) fn finish(self) -> Result<LayerExperts, String> {
        const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
        let mut experts = Vec::with_capacity(self.pieces.len());
        for (index, pieces) in self.pieces.into_iter().enumerate() {
            let missing = |projection: usize| format!(".{index}.{}", NAMES[projection]);
            let [gate, up, down] = pieces;
            let gate = gate.ok_or_else(|| missing(0))?;
            let up = up.ok_or_else(|| missing(1))?;
            let down = down.ok_or_else(|| missing(2))?;
            experts.push(ExpertExtents {
                weight: [gate.0, up.0, down.0],
                scales_biases: [gate.1, up.1, down.1],
            });
        }
        match self.shapes {
            [Some(gate), Some(up), Some(down)] => {
                Ok(LayerExperts { shapes: [gate, up, down], experts })
            }
            _ => Err(String::new()),
        }
    }
}
