//! Heads: a layer behind the last that predicts further tokens, with what it reads and writes.
//!
//! A head has canonical names as DeepSeek-V3 and GLM-4.5 name it, under the number behind the last layer:
//! `layers.N.eh_proj`, `enorm`, `hnorm`, `shared_head.norm`, and those of an ordinary layer. Qwen's `mtp.*` are renamed
//! to these. A checkpoint is the trunk until [`Checkpoint::with_head`] adds the head: without drafts nothing meets it.

use std::collections::BTreeMap;
use std::path::Path;

use super::assemble::{self, Schemes};
use super::config::Dimensions;
use super::input_major::InputMajors;
use super::names;
use super::safetensors::RawTensor;
use super::{Checkpoint, CheckpointFile, FileId, LayerExperts, Tensor};

/// What Qwen calls the parts of a head after `mtp.`, and their canonical names after the layer's number.
const QWEN: [(&str, &str); 5] = [
    ("fc.", "eh_proj."),
    ("pre_fc_norm_embedding.", "enorm."),
    ("pre_fc_norm_hidden.", "hnorm."),
    ("norm.", "shared_head.norm."),
    ("layers.0.", ""),
];

/// The prefix of Qwen's heads.
const MTP: &str = "mtp.";

/// What a checkpoint has to predict further tokens with.
#[derive(Clone, Debug, Default)]
pub enum Head {
    /// Nothing.
    #[default]
    Absent,
    /// Tensors that make no head here, and why.
    Unusable(String),
    /// A head, which the checkpoint's tensors and experts do not show yet.
    Apart(Box<DraftHead>),
    /// A head among the checkpoint's tensors and experts.
    Added,
}

/// The tensors of a head.
#[derive(Clone, Debug)]
pub struct DraftHead {
    /// By canonical name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Its routed experts.
    pub experts: Option<LayerExperts>,
}

impl DraftHead {
    /// Bytes of everything but the routed experts.
    pub fn trunk_bytes(&self) -> u64 {
        self.tensors.values().map(Tensor::bytes).sum()
    }

    /// Bytes of all routed experts, without padding.
    pub fn expert_bytes(&self) -> u64 {
        let bytes = |experts: &LayerExperts| {
            let shapes = experts.shapes.iter();
            let one = shapes.map(|it| it.encoding.matrix_bytes(it.rows, it.columns) as u64);
            one.sum::<u64>() * experts.experts.len() as u64
        };
        self.experts.as_ref().map_or(0, bytes)
    }
}

impl Checkpoint {
    /// The checkpoint with its head as one layer more.
    ///
    /// # Errors
    /// Why it has none.
    pub fn with_head(mut self) -> Result<Self, String> {
        match std::mem::take(&mut self.head) {
            Head::Apart(head) => {
                self.tensors.extend(head.tensors);
                self.experts.push(head.experts);
            }
            Head::Added => {}
            Head::Absent => {
                return Err("has no head that predicts further tokens".to_owned());
            }
            Head::Unusable(why) => {
                return Err(format!("has no whole head that predicts further tokens: {why}"));
            }
        }
        self.head = Head::Added;
        Ok(self)
    }

    /// The checkpoint with its head, where it has one.
    pub(crate) fn with_any_head(self) -> Self {
        match self.head {
            Head::Apart(_) => self.with_head().unwrap_or_else(|_| unreachable!("it has a head")),
            _ => self,
        }
    }
}

/// Raw tensors of the trunk, and those of a head with the names that they have in the files.
pub(super) struct Split {
    pub(super) trunk: Vec<(FileId, RawTensor)>,
    pub(super) head: Vec<(FileId, RawTensor)>,
}

/// Parts the tensors of heads from the others.
pub(super) fn split(raw: Vec<(FileId, RawTensor)>, dimensions: Dimensions) -> Split {
    let of_head = |tensor: &RawTensor| {
        let (name, _) = names::canonical(&tensor.name);
        let beyond = dimensions.layers..dimensions.layers + dimensions.drafts;
        name.starts_with(MTP)
            || names::layer(&name).is_some_and(|(layer, _)| beyond.contains(&layer))
    };
    let (head, trunk) = raw.into_iter().partition(|(_, tensor)| of_head(tensor));
    Split { trunk, head }
}

/// The name of a head's tensor as the layer with number `layer` has it.
fn renamed(name: &str, layer: usize) -> Option<String> {
    let Some((_, rest)) = name.split_once(MTP) else { return Some(name.to_owned()) };
    let (theirs, ours) = QWEN.iter().find(|(theirs, _)| rest.starts_with(theirs))?;
    Some(format!("layers.{layer}.{ours}{}", &rest[theirs.len()..]))
}

/// The head that these tensors make, and which of its matrices lie inputs before outputs. A head is no part of any
/// answer, so one that is not whole is said, not refused.
pub(super) fn assemble(
    config: &Path,
    files: &[CheckpointFile],
    raw: Vec<(FileId, RawTensor)>,
    dimensions: Dimensions,
    schemes: &Schemes<'_>,
) -> (Head, InputMajors) {
    let unusable = |why: String| (Head::Unusable(why), InputMajors::default());
    if raw.is_empty() {
        return (Head::Absent, InputMajors::default());
    }
    let layer = dimensions.layers;
    let mut own = Vec::with_capacity(raw.len());
    for (file, mut tensor) in raw {
        match renamed(&tensor.name, layer) {
            Some(name) => tensor.name = name,
            None => return unusable(format!("{} is not known here", tensor.name)),
        }
        own.push((file, tensor));
    }
    let dimensions = Dimensions { layers: layer + 1, drafts: 0, ..dimensions };
    let mut found = match assemble::assemble(config, files, own, dimensions, schemes) {
        Ok(found) => found,
        Err(error) => return unusable(error.to_string()),
    };
    if let Some(name) = found.unused.first() {
        return unusable(format!("{name} is not known here"));
    }
    let experts = found.experts.pop().flatten();
    match whole(found.tensors, experts, layer) {
        head @ Head::Apart(_) => (head, found.input_majors),
        head => (head, InputMajors::default()),
    }
}

/// The head that these tensors of a layer are, if they are one.
pub(super) fn whole(
    tensors: BTreeMap<String, Tensor>,
    experts: Option<LayerExperts>,
    layer: usize,
) -> Head {
    let name = |part: &str| format!("layers.{layer}.{part}");
    let router = ["mlp.gate", names::ROUTER].map(name).iter().any(|it| tensors.contains_key(it));
    let missing = names::DRAFT.into_iter().map(name).find(|name| !tensors.contains_key(name));
    match (missing, &experts) {
        (Some(missing), _) => Head::Unusable(format!("{missing} is missing")),
        (None, None) if router => Head::Unusable(format!("{} are missing", name("mlp.experts"))),
        _ => Head::Apart(Box::new(DraftHead { tensors, experts })),
    }
}
