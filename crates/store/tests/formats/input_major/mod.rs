//! Checkpoints as GPTQ, AWQ and AutoRound write them, inputs before outputs, with the values that they mean.
//!
//! Codes, zero points and scales are drawn at random; here are the formulas by which the tools lay them out, and the
//! value of each, `(code - zero point) * scale`, without any of the code under test.

mod refused;
mod values;

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::common::{Entry, Folder, Noise};
use crate::malformed::Draft;
use crate::published::{entry, name, replace};

/// What a checkpoint is quantised with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) layout: Layout,
    pub(crate) bits: usize,
    /// `None` for a whole row.
    pub(crate) group: Option<usize>,
    pub(crate) symmetric: bool,
    /// F16 or BF16.
    pub(crate) scales: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Zero points are stored less one.
    Gptq,
    GptqV2,
    Awq,
}

pub(crate) const USUAL: Form =
    Form { layout: Layout::Gptq, bits: 4, group: Some(32), symmetric: false, scales: "F16" };

/// The shape of the matrix, and its values by rows.
pub(crate) type Values = BTreeMap<String, ([usize; 2], Vec<f32>)>;

impl Form {
    pub(crate) fn config(&self) -> Value {
        let group = self.group.map_or(-1, |group| group as i64);
        match self.layout {
            Layout::Awq => json!({
                "quant_method": "awq", "bits": self.bits, "group_size": group, "version": "gemm",
                "zero_point": !self.symmetric, "modules_to_not_convert": ["gate", "lm_head"],
            }),
            layout => json!({
                "quant_method": "gptq", "bits": self.bits, "group_size": group, "desc_act": false,
                "sym": self.symmetric, "dynamic": {"-:.*shared_expert_gate": {}},
                "checkpoint_format": if layout == Layout::Gptq { "gptq" } else { "gptq_v2" },
            }),
        }
    }

    /// Tensors of a matrix with random codes, and its values.
    pub(crate) fn matrix(
        &self,
        noise: &mut Noise,
        stem: &str,
        [rows, columns]: [usize; 2],
    ) -> (Vec<Entry>, Vec<f32>) {
        let (bits, group) = (self.bits, self.group.unwrap_or(columns));
        let (groups, most) = (columns / group, 1 << self.bits);
        let per_word = 32 / bits;
        let codes: Vec<u32> = (0..rows * columns).map(|_| noise.below(most) as u32).collect();
        let zeros: Vec<u32> = (0..rows * groups)
            .map(|_| match (self.symmetric, self.layout) {
                (true, _) => most as u32 / 2,
                // No tool writes one that is less than one in this version.
                (false, Layout::Gptq) => 1 + noise.below(most - 1) as u32,
                (false, _) => noise.below(most) as u32,
            })
            .collect();
        // In both types the low bits are of the fraction.
        let scales: Vec<u16> =
            (0..rows * groups).map(|_| 0x2c00 | noise.below(0x80) as u16).collect();
        let scale = |bits: u16| match self.scales {
            "F16" => {
                (1.0 + f32::from(bits & 0x3ff) / 1024.0) * 2f32.powi(i32::from(bits >> 10) - 15)
            }
            _ => f32::from_bits(u32::from(bits) << 16),
        };
        let value = |index: usize| {
            let (row, column) = (index / columns, index % columns);
            let at = row * groups + column / group;
            (codes[index] as f32 - zeros[at] as f32) * scale(scales[at])
        };
        let values = (0..rows * columns).map(value).collect();
        let shape = match self.layout {
            Layout::Awq => [columns, rows / per_word],
            _ => [columns / per_word, rows],
        };
        let mut words = vec![0u32; shape[0] * shape[1]];
        for (index, code) in codes.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let (word, place) = match self.layout {
                Layout::Awq => (column * shape[1] + row / 8, awq_place(row)),
                _ => (column / per_word * rows + row, column % per_word),
            };
            words[word] |= code << (place * bits);
        }
        let across = rows / per_word;
        let (mut zero_words, mut of_scales) = (vec![0u32; groups * across], Vec::new());
        for group in 0..groups {
            for row in 0..rows {
                let (stored, place) = match self.layout {
                    Layout::Gptq => (zeros[row * groups + group] - 1, row % per_word),
                    Layout::GptqV2 => (zeros[row * groups + group], row % per_word),
                    Layout::Awq => (zeros[row * groups + group], awq_place(row)),
                };
                zero_words[group * across + row / per_word] |= stored << (place * bits);
                of_scales.extend(scales[row * groups + group].to_le_bytes());
            }
        }
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut tensors = vec![
            entry(format!("{stem}qweight"), "I32", &shape, bytes(&words)),
            entry(format!("{stem}qzeros"), "I32", &[groups, across], bytes(&zero_words)),
            entry(format!("{stem}scales"), self.scales, &[groups, rows], of_scales),
        ];
        if self.layout != Layout::Awq {
            let order: Vec<u32> = (0..columns).map(|input| (input / group) as u32).collect();
            tensors.push(entry(format!("{stem}g_idx"), "I32", &[columns], bytes(&order)));
        }
        (tensors, values)
    }

    /// The tiny checkpoint with its matrices quantised, but for those of a few rows; and their values.
    pub(crate) fn draft(&self) -> (Draft, Values) {
        let mut draft = Draft::hugging_face(false);
        let values = std::cell::RefCell::new(Values::new());
        replace(&mut draft, |noise, name, shape| {
            let &[rows, columns] = shape else { panic!("{name}: {shape:?}") };
            let stem = name.strip_suffix("weight").unwrap();
            if rows < 32 {
                let data = noise.floats("BF16", rows * columns);
                return vec![entry(name.to_owned(), "BF16", shape, data)];
            }
            let (tensors, of_matrix) = self.matrix(noise, stem, [rows, columns]);
            let known = stem.trim_start_matches("model.language_model.").trim_end_matches('.');
            values.borrow_mut().insert(known.to_owned(), ([rows, columns], of_matrix));
            tensors
        });
        draft.config["quantization_config"] = self.config();
        (draft, values.into_inner())
    }
}

/// Where AutoAWQ's kernels have an output of eight in a word: nibble `i` holds output 0, 2, 4, 6, 1, 3, 5, 7.
fn awq_place(row: usize) -> usize {
    [0, 2, 4, 6, 1, 3, 5, 7].iter().position(|output| *output == row % 8).unwrap()
}

/// Writes a draft as tools of PyTorch do.
pub(crate) fn write(draft: &Draft) -> Folder {
    let folder = Folder::checkpoint(&draft.config, &draft.tensors, "pt");
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    folder
}

pub(crate) const MATRIX: &str = "mlp.experts.2.up_proj";

/// A tensor of the matrix that tests damage.
pub(crate) fn part(end: &str) -> String {
    name(&format!("{MATRIX}.{end}"))
}
