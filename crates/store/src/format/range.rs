//! A checkpoint as a store of the experts of some layers sees it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Checkpoint, Head};

impl Checkpoint {
    /// The same checkpoint with the experts of these layers alone, and without the tensors outside experts: what a
    /// store is opened on that serves a device which computes a range of layers. Layers keep their numbers; the others
    /// are as dense ones, which have no records.
    #[must_use]
    pub fn experts_of(&self, layers: &Range<usize>) -> Self {
        let experts = self.experts.iter().enumerate();
        let own = |(index, experts): (usize, &Option<_>)| {
            experts.as_ref().filter(|_| layers.contains(&index)).cloned()
        };
        Self {
            kind: self.kind,
            root: self.root.clone(),
            files: self.files.clone(),
            config: self.config.clone(),
            generation_config: None,
            tokenizer: None,
            tokenizer_config: None,
            chat_template: None,
            tensors: BTreeMap::new(),
            experts: experts.map(own).collect(),
            head: Head::Absent,
            row_tables: BTreeMap::new(),
            norms_are_zero_centred: self.norms_are_zero_centred,
            skipped: Vec::new(),
            unused: Vec::new(),
            input_majors: self.input_majors.clone(),
            pack: self.pack.clone(),
        }
    }
}
