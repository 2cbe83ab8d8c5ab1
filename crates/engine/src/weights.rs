//! The dense weights of a model: declared by name and shape, then loaded.
//!
//! A family declares what it needs in a [`Catalog`], which checks names, shapes and encodings against
//! the checkpoint without reading data; so `plan` and `inspect` know every byte before anything is
//! loaded. [`Catalog::load`] then brings exactly those tensors into memory. Matrices keep the
//! checkpoint's encoding; vectors (norms, convolution taps, decay rates) are decoded to f32 once.

mod derived;
mod joined;
mod load;
mod range;
mod rows;
mod table;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use kernels::format::{Encoding, FloatType, Matrix};
use store::format::{Checkpoint, Extent, Tensor};
use store::trunk::Trunk;

use self::derived::Derived;
pub use self::range::Part;
use self::rows::NumbersPlace;
pub use self::table::Table;
use self::table::TablePlace;
use crate::EngineError;

/// A matrix of [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(u32);

/// A vector of [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(u32);

/// A table whose rows are read one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowTableId(u32);

/// A table of whole numbers of [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(u32);

impl TableId {
    /// Its place in the order of declaration.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl RowTableId {
    /// Its place in the order of declaration.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl MatrixId {
    /// Its place in the order of declaration.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl VectorId {
    /// Its place in the order of declaration.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Most bytes that [`Catalog::load_parts`] holds at once, unless one matrix is larger.
pub const PART_BYTES: u64 = 256 << 20;

/// What is done to a vector when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorRole {
    /// Taken as stored.
    Plain,
    /// A zero-centred RMS norm weight: used as `1 + w`, stored as `w` or as `1 + w`.
    Norm,
    /// A logarithm whose exponential is used (`A_log`).
    Exponential,
    /// A value whose negative is used (`A`, which is `-exp(A_log)`).
    Negative,
    /// A value that is divided by the root of the vector's length.
    PerRoot,
}

#[derive(Clone, Debug)]
struct MatrixPlace {
    name: String,
    rows: usize,
    columns: usize,
    tensor: Tensor,
    /// The tensor's.
    encoding: Encoding,
    /// Where the matrix is not the tensor as it lies there: how it is made.
    derived: Option<Derived>,
    /// Of the model.
    part: Part,
}

#[derive(Clone, Debug)]
struct VectorPlace {
    name: String,
    length: usize,
    role: VectorRole,
    float: FloatType,
    extent: Extent,
    /// Tensors whose values follow: how many, their type, and where they lie.
    behind: Vec<(usize, FloatType, Extent)>,
    /// Where the vector is not the whole tensor: its first value there, and how many lie from one to the next.
    every: (usize, usize),
    /// Whether a device that binds buffers has it behind the vector before it ([`Catalog::join`]).
    joined: bool,
    /// Of the model.
    part: Part,
}

/// The tensors that a model needs, checked against a checkpoint.
#[derive(Clone)]
pub struct Catalog<'a> {
    checkpoint: &'a Checkpoint,
    checked: bool,
    matrices: Vec<MatrixPlace>,
    vectors: Vec<VectorPlace>,
    tables: Vec<(TablePlace, Part)>,
    /// Tensors whose bytes are to be the same.
    copies: Vec<([String; 2], Part)>,
    /// Names of tables whose rows are read one by one.
    row_tables: Vec<(String, Part)>,
    /// Tensors of whole numbers that follow from the configuration, and these.
    numbers: Vec<(NumbersPlace, Vec<u64>)>,
    /// Names of the tensors that were asked for.
    used: HashSet<String>,
    /// What is being declared.
    part: Part,
    /// The layers that are loaded, and with the first and the last of the model what is before and behind all layers.
    loaded: Option<Range<usize>>,
    /// Not what is behind all layers, although the last is loaded.
    leaves_behind: bool,
}

impl<'a> Catalog<'a> {
    /// An empty catalogue over `checkpoint`.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            checked: true,
            matrices: Vec::new(),
            vectors: Vec::new(),
            tables: Vec::new(),
            copies: Vec::new(),
            row_tables: Vec::new(),
            numbers: Vec::new(),
            used: HashSet::new(),
            part: Part::default(),
            loaded: None,
            leaves_behind: false,
        }
    }

    /// Loads without comparing the tensors with their checksums, where the layout has some.
    pub fn decline_check(&mut self) {
        self.checked = false;
    }

    /// True when the checkpoint has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors.contains_key(name)
    }

    fn tensor(&mut self, name: &str) -> Result<&'a Tensor, EngineError> {
        self.used.insert(name.to_owned());
        let missing = || EngineError::tensor(name, "is missing from the checkpoint");
        self.checkpoint.tensors.get(name).ok_or_else(missing)
    }

    /// Declares the matrix `name` of shape `[rows, columns]`.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<MatrixId, EngineError> {
        let tensor = self.shaped(name, rows, columns)?;
        let (encoding, name) = (values(name, &tensor)?, name.to_owned());
        let (derived, part) = (None, self.part);
        Ok(self.push(MatrixPlace { name, rows, columns, tensor, encoding, derived, part }))
    }

    fn push(&mut self, place: MatrixPlace) -> MatrixId {
        self.matrices.push(place);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// Declares a matrix whose rows are used in `parts` equal parts.
    ///
    /// # Errors
    /// As [`Catalog::matrix`], or parts that cut through rows that share scales.
    pub fn matrix_in_parts(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        parts: usize,
    ) -> Result<MatrixId, EngineError> {
        let shared = self.rows_per_scale(name, (rows, columns))?;
        if !(rows / parts).is_multiple_of(shared) {
            let found =
                format!("its {parts} parts cut through {shared} rows that share scales: use bf16");
            return Err(EngineError::tensor(name, found));
        }
        self.matrix(name, rows, columns)
    }

    /// Rows of the tensor `name` that share scales, one where none do.
    ///
    /// # Errors
    /// As [`Catalog::matrix`].
    pub fn rows_per_scale(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
    ) -> Result<usize, EngineError> {
        Ok(values(name, &self.shaped(name, rows, columns)?)?.rows_per_scale())
    }

    /// Declares matrices of rows of the tensor `name` of shape `[rows, columns]`, which holds the rows of several
    /// matrices mixed: of each, which rows, from first to last. They are put in order when they are loaded, so that
    /// no device meets the mixture; where the others are mapped, these are copies.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn gathered<const N: usize>(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        parts: [Vec<Range<usize>>; N],
    ) -> Result<[MatrixId; N], EngineError> {
        let tensor = self.shaped(name, rows, columns)?;
        let encoding = values(name, &tensor)?;
        let first = self.matrices.len() as u32;
        for runs in parts {
            assert!(runs.iter().all(|run| run.end <= rows), "{name}: rows beyond {rows}");
            let rows = runs.iter().map(Range::len).sum();
            let (name, tensor) = (name.to_owned(), tensor.clone());
            let derived = Some(Derived::Rows(runs));
            let part = self.part;
            let place = MatrixPlace { name, rows, columns, tensor, encoding, derived, part };
            self.matrices.push(place);
        }
        Ok(std::array::from_fn(|index| MatrixId(first + index as u32)))
    }

    /// Declares a matrix of the columns of blocks of rows of the tensor `name` of shape `[rows, columns]`: of each
    /// block its columns as rows, block after block. It is made when it is loaded and is a copy; an encoding that
    /// groups values becomes binary32.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn transposed(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        blocks: Vec<Range<usize>>,
    ) -> Result<MatrixId, EngineError> {
        let tensor = self.shaped(name, rows, columns)?;
        let size = blocks.first().map_or(0, Range::len);
        let fits = |block: &Range<usize>| block.len() == size && block.end <= rows;
        assert!(blocks.iter().all(fits), "{name}: blocks of {size} in {rows} rows");
        let (rows, columns) = (blocks.len() * columns, size);
        let encoding = values(name, &tensor)?;
        let (name, derived) = (name.to_owned(), Some(Derived::Transposed(blocks)));
        let part = self.part;
        Ok(self.push(MatrixPlace { name, rows, columns, tensor, encoding, derived, part }))
    }

    /// Declares the matrices `name`, `[count, rows, columns]`, as one of `count * rows` rows.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub fn stacked(&mut self, name: &str, shape: [usize; 3]) -> Result<MatrixId, EngineError> {
        let tensor = self.tensor(name)?.clone();
        if tensor.shape != shape {
            let found = format!("has shape {:?}, expected {shape:?}", tensor.shape);
            return Err(EngineError::tensor(name, found));
        }
        let [count, rows, columns] = shape;
        let encoding = values(name, &tensor)?;
        encoding.check(columns).map_err(|e| EngineError::tensor(name, e.to_string()))?;
        let (name, rows, derived) = (name.to_owned(), count * rows, None);
        let part = self.part;
        Ok(self.push(MatrixPlace { name, rows, columns, tensor, encoding, derived, part }))
    }

    /// The tensor `name`, which must be a matrix of this shape.
    fn shaped(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor, EngineError> {
        let tensor = self.tensor(name)?;
        if tensor.shape != [rows, columns] {
            let found = format!("has shape {:?}, expected [{rows}, {columns}]", tensor.shape);
            return Err(EngineError::tensor(name, found));
        }
        let checked = values(name, tensor)?.check(columns);
        checked.map_err(|e| EngineError::tensor(name, e.to_string()))?;
        Ok(tensor.clone())
    }

    /// Declares the vector `name` of `length` values (any shape with that many).
    ///
    /// # Errors
    /// The tensor is missing, has another size, or is quantised.
    pub fn vector(
        &mut self,
        name: &str,
        length: usize,
        role: VectorRole,
    ) -> Result<VectorId, EngineError> {
        let [vector] = self.vectors_in_turns(name, length, role)?;
        Ok(vector)
    }

    /// Declares `N` vectors of `length` values each whose values lie in turns in the tensor `name`. They are parted
    /// when they are loaded, so that no device meets the mixture.
    ///
    /// # Errors
    /// As [`Catalog::vector`].
    pub fn vectors_in_turns<const N: usize>(
        &mut self,
        name: &str,
        length: usize,
        role: VectorRole,
    ) -> Result<[VectorId; N], EngineError> {
        let tensor = self.tensor(name)?;
        if tensor.shape.iter().product::<usize>() != N * length {
            let found = format!("has shape {:?}, expected {} values", tensor.shape, N * length);
            return Err(EngineError::tensor(name, found));
        }
        let Encoding::Float(float) = values(name, tensor)? else {
            return Err(EngineError::tensor(name, "is quantised; expected bf16, f16 or f32"));
        };
        let (extent, first, part) = (tensor.weight, self.vectors.len() as u32, self.part);
        let place = |turn| VectorPlace {
            name: name.to_owned(),
            length,
            role,
            float,
            extent,
            behind: Vec::new(),
            every: (turn, N),
            joined: false,
            part,
        };
        self.vectors.extend((0..N).map(place));
        Ok(std::array::from_fn(|turn| VectorId(first + turn as u32)))
    }

    /// Declares a vector of the values of several tensors, one behind the other: names, and values of each.
    ///
    /// # Errors
    /// As [`Catalog::vector`].
    ///
    /// # Panics
    /// If there is no tensor.
    pub fn chained(
        &mut self,
        parts: &[(String, usize)],
        role: VectorRole,
    ) -> Result<VectorId, EngineError> {
        let ((name, length), rest) = parts.split_first().expect("a tensor at least");
        let chain = self.vector(name, *length, role)?;
        for (name, length) in rest {
            self.vector(name, *length, role)?;
            let VectorPlace { length, float, extent, .. } =
                self.vectors.pop().expect("the vector that was just declared");
            let first = &mut self.vectors[chain.index()];
            first.length += length;
            first.behind.push((length, float, extent));
        }
        Ok(chain)
    }

    /// Declares the table `name` of `[rows, columns]` whole numbers below `below`, which is at most 65,536.
    ///
    /// # Errors
    /// The tensor is missing, has another shape, or no whole numbers.
    pub fn table(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        below: usize,
    ) -> Result<TableId, EngineError> {
        let place = TablePlace::new(name, self.tensor(name)?, (rows, columns), below)?;
        self.tables.push((place, self.part));
        Ok(TableId(self.tables.len() as u32 - 1))
    }

    /// Declares that the tensor `copy`, if there is one, is the tensor `of` once more. It is compared when the others
    /// are loaded, and not loaded itself.
    pub fn copy(&mut self, copy: &str, of: &str) {
        if self.has(copy) {
            self.copies.push(([copy, of].map(str::to_owned), self.part));
        }
    }

    /// Says that the tensor `name`, if there is one, has no use here: what it holds is another's.
    pub fn ignore(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// Refuses a checkpoint whose layers hold tensors that no layout here knows (a bias, say): ignoring them would
    /// change the answer.
    ///
    /// # Errors
    /// The first such tensor.
    pub fn refuse_unknown(&self) -> Result<(), EngineError> {
        first_of_a_layer(self.checkpoint.unused.iter())
    }

    /// Refuses a checkpoint whose layers hold tensors that other families have and this one did not declare.
    ///
    /// # Errors
    /// The first such tensor.
    pub fn refuse_undeclared(&self) -> Result<(), EngineError> {
        let known = self.checkpoint.tensors.keys().chain(self.checkpoint.row_tables.keys());
        first_of_a_layer(known.filter(|name| !self.used.contains(*name)))
    }

    /// Bytes that [`Catalog::load`] will hold.
    pub fn required_bytes(&self) -> u64 {
        let vectors = self.vectors.iter().filter(|vector| self.loads(vector.part));
        let vectors: usize = vectors.map(|vector| vector.length * 4).sum();
        let derived = self.loaded_matrices().filter(|place| place.derived.is_some());
        let derived: u64 = derived.map(MatrixPlace::bytes).sum();
        let tables = self.tables.iter().filter(|(_, part)| self.loads(*part));
        let tables = tables.map(|(table, _)| table.bytes());
        Trunk::required_bytes(&self.extents()) + derived + vectors as u64 + tables.sum::<u64>()
    }

    /// Every extent that stays as it is read; a tensor declared twice (a tied head) counts once.
    fn extents(&self) -> Vec<Extent> {
        extents_of(self.loaded_matrices().filter(|place| place.derived.is_none()))
    }

    /// Matrices declared: rows, columns and encoding of each, in order.
    pub fn matrices(&self) -> impl Iterator<Item = (usize, usize, Encoding)> {
        self.matrices.iter().map(|place| (place.rows, place.columns, place.encoding()))
    }

    /// Name and encoding of each matrix declared, in order.
    pub fn encodings(&self) -> impl Iterator<Item = (&str, Encoding)> {
        self.matrices.iter().map(|place| (&*place.name, place.encoding()))
    }

    /// Values of each vector declared, in order.
    pub fn vector_lengths(&self) -> impl Iterator<Item = usize> {
        self.vectors.iter().map(|place| place.length)
    }
}

/// The encoding of a tensor's values.
fn values(name: &str, tensor: &Tensor) -> Result<Encoding, EngineError> {
    let whole = || {
        let found = format!("holds whole numbers ({}), not values", tensor.element.name());
        EngineError::tensor(name, found)
    };
    tensor.element.encoding().ok_or_else(whole)
}

/// Refuses the first name that belongs to a layer.
fn first_of_a_layer<'n>(mut names: impl Iterator<Item = &'n String>) -> Result<(), EngineError> {
    match names.find(|name| name.contains("layers.")) {
        Some(name) => Err(EngineError::tensor(name, "belongs to a layer but has no use here")),
        None => Ok(()),
    }
}

/// The extents of matrices, in file order, each once.
fn extents_of<'p>(places: impl Iterator<Item = &'p MatrixPlace>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = places.flat_map(MatrixPlace::extents).collect();
    extents.sort_by_key(|extent| (extent.file, extent.offset));
    extents.dedup();
    extents
}

impl MatrixPlace {
    /// The matrix' encoding, which need not be the tensor's.
    fn encoding(&self) -> Encoding {
        let encoding = self.encoding;
        self.derived.as_ref().map_or(encoding, |derived| derived.encoding(encoding))
    }

    /// Bytes of the matrix.
    fn bytes(&self) -> u64 {
        self.encoding().matrix_bytes(self.rows, self.columns) as u64
    }

    /// The matrix of planes that were made.
    fn made<'t>(&self, [weight, scales, biases]: &'t [Vec<u8>; 3]) -> Matrix<'t> {
        let (rows, columns) = (self.rows, self.columns);
        Matrix::new(self.encoding(), rows, columns, weight, scales, biases)
            .expect("the catalogue checked shape and extents")
    }

    fn extents(&self) -> impl Iterator<Item = Extent> + use<> {
        let behind = self.followed().map(|(tensor, _)| tensor);
        let of = |tensor: &Tensor| {
            let (weight, pair) = (tensor.weight, tensor.scales_biases);
            [Some(weight), pair.map(|s| s.0), pair.map(|s| s.1)].into_iter().flatten()
        };
        of(&self.tensor).chain(behind.into_iter().flat_map(of)).collect::<Vec<_>>().into_iter()
    }

    /// The tensor as it lies in the trunk.
    fn source<'t>(&self, trunk: &'t Trunk) -> Matrix<'t> {
        lying(&self.tensor, self.encoding, trunk)
    }
}

/// A tensor as it lies in the trunk.
fn lying<'t>(tensor: &Tensor, encoding: Encoding, trunk: &'t Trunk) -> Matrix<'t> {
    let (scales, biases) = match tensor.scales_biases {
        Some((scales, biases)) => (trunk.bytes(scales), trunk.bytes(biases)),
        None => (&[][..], &[][..]),
    };
    let weight = trunk.bytes(tensor.weight);
    let columns = tensor.shape.last().copied().unwrap_or(0);
    let rows = tensor.shape.iter().rev().skip(1).product();
    Matrix::new(encoding, rows, columns, weight, scales, biases)
        .expect("the catalogue checked shape and extents")
}

/// Loaded dense weights.
pub struct Weights {
    trunk: Trunk,
    /// Planes of the matrices that do not lie in the trunk as they are, by [`MatrixId`].
    derived: HashMap<u32, [Vec<u8>; 3]>,
    matrices: Vec<MatrixPlace>,
    vectors: Vec<Vec<f32>>,
    tables: Vec<Table>,
}

impl Weights {
    /// A matrix, borrowed in the checkpoint's encoding.
    pub fn matrix(&self, id: MatrixId) -> Matrix<'_> {
        let place = &self.matrices[id.0 as usize];
        match self.derived.get(&id.0) {
            None => place.source(&self.trunk),
            Some(planes) => place.made(planes),
        }
    }

    /// A decoded vector.
    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }

    /// A table.
    pub fn table(&self, id: TableId) -> &Table {
        &self.tables[id.0 as usize]
    }

    /// Says whether the files behind the matrices are what they were ([`Trunk::check`]).
    ///
    /// # Errors
    /// The mapped file that was cut or written to.
    pub fn check(&self) -> Result<(), EngineError> {
        Ok(self.trunk.check()?)
    }

    /// Bytes held by the matrices.
    pub fn resident_bytes(&self) -> u64 {
        let derived = self.derived.values().flatten().map(|plane| plane.len() as u64);
        self.trunk.resident_bytes() + derived.sum::<u64>()
    }
}
