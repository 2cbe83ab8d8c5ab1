//! What `inspect`, `plan` and the packer ask of an opened checkpoint: sizes, identity, checksums.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use super::config::keys;
use super::sidecar::GENERATION_CONFIG;
use super::{Checkpoint, Extent, FormatError, SourceKind, Tensor, files};
use crate::io::platform::FileExt;
use crate::{ExpertId, LayerId};

/// Bytes of two tensors that are compared at a time.
const COMPARED_BYTES: usize = 4 << 20;

/// Checksum of the bytes of a record or a trunk part as read, padding included: XXH3, 64 bits.
pub fn record_checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// What a part of the trunk must sum to.
#[derive(Clone, Copy, Debug)]
pub struct PartSum<'a> {
    /// `lm_head.scales`.
    pub name: &'a str,
    /// Zero bytes behind the part that the checksum covers as well.
    pub padding: u64,
    /// XXH3, 64 bits.
    pub expected: u64,
}

impl SourceKind {
    /// The name used in manifests and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlx => "mlx",
            Self::HuggingFace => "hugging-face",
            Self::Native => "native",
            Self::Ancestor => "ancestor",
            Self::Gguf => "gguf",
        }
    }
}

impl Tensor {
    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts().map(|extent| extent.length).sum()
    }

    /// Weight, then scales and biases where the encoding has them.
    pub fn parts(&self) -> impl Iterator<Item = Extent> {
        let rest = self.scales_biases.map(|(scales, biases)| [scales, biases]);
        let rest = rest.into_iter().flatten().filter(|extent| extent.length > 0);
        std::iter::once(self.weight).chain(rest)
    }
}

impl Checkpoint {
    /// Bytes of every tensor outside the routed experts.
    pub fn trunk_bytes(&self) -> u64 {
        self.tensors.values().map(Tensor::bytes).sum()
    }

    /// True where two tensors have one type, one shape and the same bytes, or one of them is not there.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn same_bytes(&self, first: &str, second: &str) -> Result<bool, FormatError> {
        let (Some(a), Some(b)) = (self.tensors.get(first), self.tensors.get(second)) else {
            return Ok(true);
        };
        if (a.element, &a.shape) != (b.element, &b.shape) {
            return Ok(false);
        }
        let mut buffers = [Vec::new(), Vec::new()];
        for (a, b) in a.parts().zip(b.parts()) {
            for start in (0..a.length).step_by(COMPARED_BYTES) {
                let length = (a.length - start).min(COMPARED_BYTES as u64) as usize;
                for (extent, buffer) in [a, b].into_iter().zip(&mut buffers) {
                    let path = &self.files[extent.file.0 as usize].path;
                    buffer.resize(length, 0);
                    let read = files::open_regular(path)?.file;
                    let read = read.read_exact_at(buffer, extent.offset + start);
                    read.map_err(|error| FormatError::io(path, "read", error))?;
                }
                if buffers[0] != buffers[1] {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Bytes of a record in the first layer that has experts.
    pub fn first_record_bytes(&self) -> Option<u64> {
        (0..self.experts.len()).find_map(|layer| self.record_bytes(LayerId(layer as u16)))
    }

    /// Bytes of one expert of a layer, without padding; `None` for a dense layer.
    pub fn record_bytes(&self, layer: LayerId) -> Option<u64> {
        let layer = self.experts.get(layer.index())?.as_ref()?;
        let bytes = layer
            .shapes
            .iter()
            .map(|shape| shape.encoding.matrix_bytes(shape.rows, shape.columns) as u64);
        Some(bytes.sum())
    }

    /// Bytes of all routed experts, without padding.
    pub fn expert_bytes(&self) -> u64 {
        let layer = |(index, layer): (usize, &Option<_>)| {
            let experts = layer.as_ref().map_or(0, |l: &super::LayerExperts| l.experts.len());
            self.record_bytes(LayerId(index as u16)).unwrap_or(0) * experts as u64
        };
        self.experts.iter().enumerate().map(layer).sum()
    }

    /// Bytes of all files that hold tensors.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// A stable identity: layout, configuration, and of every file its name, size and header. The
    /// tensors' bytes are not read.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        hasher.write(self.kind.name().as_bytes());
        hasher.write(self.config.json().to_string().as_bytes());
        for file in &self.files {
            let name = file.path.file_name().unwrap_or_default();
            hasher.write(name.as_encoded_bytes());
            hasher.write(&[0]);
            hasher.write(&file.length.to_le_bytes());
            hasher.write(&file.header_checksum.to_le_bytes());
        }
        hasher.finish()
    }

    /// The tokens that end an answer by generation_config.json, and by config.json; `None` where a file is silent.
    ///
    /// # Errors
    /// The file, and a value that is no token of the model.
    pub fn end_tokens(&self) -> Result<[Option<Vec<u32>>; 2], FormatError> {
        let file = self.root.join(GENERATION_CONFIG);
        let generation = self.generation_config.as_ref();
        let generation = generation.map(|json| self.config.generation_end_tokens(&file, json));
        Ok([generation.transpose()?.flatten(), self.config.get(&keys::EOS_TOKEN_ID)?])
    }

    /// The checksum of a part of the trunk; `None` where the layout has none.
    pub fn part_sum(&self, extent: Extent) -> Option<PartSum<'_>> {
        if extent.length == 0 {
            // A plane that the encoding lacks begins where the next part does.
            return None;
        }
        let parts = &self.pack.as_ref()?.trunk;
        let place = |(_, known, _): &(_, Extent, _)| (known.file, known.offset);
        let found = parts.binary_search_by_key(&(extent.file, extent.offset), place).ok()?;
        let (name, known, expected) = &parts[found];
        let padding = known.length.checked_sub(extent.length)?;
        Some(PartSum { name, padding, expected: *expected })
    }

    /// The checksum that [`record_checksum`] must give for an expert's whole record (from its first
    /// byte to the next 4096-byte boundary after its last); `None` where the layout has none.
    pub fn record_checksum(&self, layer: LayerId, expert: ExpertId) -> Option<u64> {
        self.pack.as_ref()?.records.get(layer.index())?.get(expert.index()).copied()
    }
}
