//! Loading what a catalogue declares: everything at once, or a part at a time; and what is checked value by value on
//! the way.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use kernels::format::Matrix;
use store::format::Extent;
use store::trunk::{LoadMode, Trunk, TrunkError};

use super::table::{Table, TablePlace};
use super::{Catalog, MatrixId, PART_BYTES, Part, VectorPlace, VectorRole, Weights, extents_of};
use crate::EngineError;

impl Catalog<'_> {
    /// Makes the matrices that are not tensors as they lie, a tensor at a time. `done` bytes were loaded before.
    fn derive(
        &self,
        mut done: u64,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<HashMap<u32, [Vec<u8>; 3]>, EngineError> {
        let mut all = HashMap::new();
        let mut loaded: Option<(Extent, Trunk)> = None;
        for (index, place) in self.matrices.iter().enumerate() {
            if !self.loads(place.part) {
                continue;
            }
            let Some(derived) = &place.derived else { continue };
            let known = loaded.take().filter(|(extent, _)| *extent == place.tensor.weight);
            let (extent, trunk) = match known {
                Some(known) => known,
                None => {
                    let extents = extents_of(std::iter::once(place));
                    let mut hear = |bytes| progress(done + bytes);
                    let mode = LoadMode::Read;
                    let trunk =
                        Trunk::load(self.checkpoint, &extents, mode, self.checked, &mut hear);
                    let trunk = trunk.map_err(stopped)?;
                    done += trunk.resident_bytes();
                    (place.tensor.weight, trunk)
                }
            };
            let behind = place.behind(&trunk);
            all.insert(index as u32, derived.planes(&place.source(&trunk), behind.as_ref()));
            loaded = Some((extent, trunk));
        }
        Ok(all)
    }

    /// Reads everything declared of what is loaded ([`Catalog::restrict`]). `progress` hears the bytes done so far.
    ///
    /// # Errors
    /// What [`Trunk::load`] reports.
    pub fn load(
        self,
        mode: LoadMode,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Weights, EngineError> {
        let (vectors, tables) = (self.load_vectors()?, self.read_tables()?);
        self.check_copies()?;
        self.check_numbers()?;
        let extents = self.extents();
        let trunk = Trunk::load(self.checkpoint, &extents, mode, self.checked, progress);
        let trunk = trunk.map_err(stopped)?;
        let derived = self.derive(trunk.resident_bytes(), progress)?;
        Ok(Weights { trunk, derived, matrices: self.matrices, vectors, tables })
    }

    /// Reads everything declared of what is loaded a part at a time, for a device with memory of its own: `each` is
    /// handed every matrix once, in the order declared, and no more than [`PART_BYTES`] or one matrix are held. Gives
    /// the decoded vectors. `progress` hears the bytes done so far.
    ///
    /// # Errors
    /// What [`Trunk::load`] or `each` reports.
    pub fn load_parts(
        &self,
        mode: LoadMode,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
        each: &mut dyn FnMut(MatrixId, Matrix<'_>) -> Result<(), EngineError>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let vectors = self.load_vectors()?;
        self.check_copies()?;
        self.check_numbers()?;
        let wanted =
            (0..self.matrices.len()).filter(|&index| self.loads(self.matrices[index].part));
        let wanted: Vec<usize> = wanted.collect();
        let (mut first, mut done) = (0, 0);
        while first < wanted.len() {
            let (mut next, mut bytes) = (first, 0);
            while next < wanted.len() {
                let more = self.matrices[wanted[next]].bytes();
                if next > first && bytes + more > PART_BYTES {
                    break;
                }
                bytes += more;
                next += 1;
            }
            let places = wanted[first..next].iter().map(|&index| (index, &self.matrices[index]));
            let extents = extents_of(places.clone().map(|(_, place)| place));
            let before = done;
            let part = Trunk::load(self.checkpoint, &extents, mode, self.checked, &mut |bytes| {
                progress(before + bytes)
            });
            let part = part.map_err(stopped)?;
            done += bytes;
            for (index, place) in places {
                let id = MatrixId(index as u32);
                match &place.derived {
                    None => each(id, place.source(&part))?,
                    Some(derived) => {
                        let behind = place.behind(&part);
                        let planes = derived.planes(&place.source(&part), behind.as_ref());
                        each(id, place.made(&planes))?;
                    }
                }
            }
            part.check()?;
            first = next;
        }
        Ok(vectors)
    }

    fn load_vectors(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        let wanted = self.vectors.iter().filter(|vector| self.loads(vector.part));
        let extents = wanted.flat_map(|vector| {
            std::iter::once(vector.extent).chain(vector.behind.iter().map(|(.., extent)| *extent))
        });
        let extents: Vec<Extent> = extents.collect();
        let mut goes_on = |_| ControlFlow::Continue(());
        let small =
            Trunk::load(self.checkpoint, &extents, LoadMode::Read, self.checked, &mut goes_on)
                .map_err(stopped)?;
        let zero_centred = self.checkpoint.norms_are_zero_centred;
        let each = |place: &VectorPlace| {
            if !self.loads(place.part) {
                return Ok(Vec::new());
            }
            let vector = decode(place, &|extent| small.bytes(extent), zero_centred);
            match vector.iter().position(|value| !value.is_finite()) {
                None => Ok(vector),
                Some(index) => {
                    let file = self.file(place.extent).display();
                    let found = format!("{file}: value {index} is {}, no number", vector[index]);
                    Err(EngineError::tensor(&place.name, found))
                }
            }
        };
        self.vectors.iter().map(each).collect()
    }

    /// Reads the tables declared, in order; those that are not loaded are empty.
    ///
    /// # Errors
    /// What [`Trunk::load`] reports, a number outside its table's range, or one that a row has twice.
    pub(crate) fn read_tables(&self) -> Result<Vec<Table>, EngineError> {
        let wanted = self.tables.iter().filter(|(_, part)| self.loads(*part));
        let extents: Vec<Extent> = wanted.map(|(table, _)| table.extent).collect();
        let mut goes_on = |_| ControlFlow::Continue(());
        let small =
            Trunk::load(self.checkpoint, &extents, LoadMode::Read, self.checked, &mut goes_on)
                .map_err(stopped)?;
        let decode = |(place, part): &(TablePlace, Part)| {
            if !self.loads(*part) {
                return Ok(Table::default());
            }
            place.decode(small.bytes(place.extent)).map_err(|found| {
                let file = self.file(place.extent).display();
                EngineError::tensor(&place.name, format!("{file}: {found}"))
            })
        };
        self.tables.iter().map(decode).collect()
    }

    /// Reads what is checked value by value when it is loaded: vectors, tables, a head beside the embedding that it is.
    ///
    /// # Errors
    /// As [`Catalog::load`].
    pub fn check_content(&self) -> Result<(), EngineError> {
        self.load_vectors()?;
        self.read_tables()?;
        self.check_copies()?;
        self.check_numbers()
    }

    /// The file that an extent lies in.
    fn file(&self, extent: Extent) -> &Path {
        &self.checkpoint.files[extent.file.0 as usize].path
    }

    /// Compares what was declared to be the same.
    fn check_copies(&self) -> Result<(), EngineError> {
        for ([copy, of], _) in self.copies.iter().filter(|(_, part)| self.loads(*part)) {
            if !self.checkpoint.same_bytes(copy, of)? {
                let found = format!(
                    "differs from {of}, which config.json says that it is (tie_word_embeddings): set that to false to \
                     use it, or remove it"
                );
                return Err(EngineError::tensor(copy, found));
            }
        }
        Ok(())
    }
}

pub(super) fn stopped(error: TrunkError) -> EngineError {
    match error {
        TrunkError::Stopped => EngineError::Cancelled,
        other => EngineError::Trunk(other),
    }
}

fn decode<'t>(
    place: &VectorPlace,
    bytes: &dyn Fn(Extent) -> &'t [u8],
    zero_centred: bool,
) -> Vec<f32> {
    let (first, step) = place.every;
    let behind: usize = place.behind.iter().map(|(count, ..)| count).sum();
    let places = (first..).step_by(step).take(place.length - behind);
    let own = bytes(place.extent);
    let mut values: Vec<f32> = places.map(|index| place.float.decode(own, index)).collect();
    for &(count, float, extent) in &place.behind {
        let more = bytes(extent);
        values.extend((0..count).map(|index| float.decode(more, index)));
    }
    match place.role {
        VectorRole::Norm if zero_centred => values.iter_mut().for_each(|value| *value += 1.0),
        VectorRole::Exponential => values.iter_mut().for_each(|value| *value = value.exp()),
        VectorRole::Negative => values.iter_mut().for_each(|value| *value = -*value),
        VectorRole::PerRoot => {
            let factor = (place.length as f64).powf(-0.5) as f32;
            values.iter_mut().for_each(|value| *value *= factor);
        }
        VectorRole::Norm | VectorRole::Plain => {}
    }
    values
}
