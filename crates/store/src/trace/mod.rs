//! Routing traces: which experts each token chose in each layer, recorded, imported and generated.
//!
//! A [`Trace`] is a dense table of expert ids `[token][layer][rank]` with the router's weights where they
//! are known. [`replay`] runs it through the residency code of the store and gives hit rates;
//! [`stats`] measures its locality; [`generator`] makes ids that behave like a measured model's.
//! Everything here returns structs; tables are printed elsewhere.

pub mod generator;
mod import;
pub mod replay;
pub mod stats;

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::shown::shown;

pub use import::{from_csv, from_jsonl};

/// First bytes of a trace file; the last one is the format version.
const MAGIC: [u8; 8] = *b"fmtrace\x01";
/// Bytes of the header: magic, fingerprint, layers, experts, top-k, flags, prompt tokens, tokens.
const HEADER_BYTES: usize = 40;
/// Tokens in a trace at most: a file that claims more is refused before memory is asked for.
const TOKENS_MAX: u64 = 1 << 32;
/// Layers of a trace at most, as of a model.
const LAYERS_MAX: usize = 1024;
/// Experts of a layer at most: ids are 16 bits.
const EXPERTS_MAX: usize = 65_536;
/// Choices per token and layer at most, sixty times those of any released model: what a token takes is
/// allocated before it is read.
const TOP_K_MAX: usize = 1024;
/// Header flag: router weights follow the ids of each token.
const FLAG_WEIGHTS: u16 = 1;

/// What is wrong with a trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It could not be read or written.
    #[error("trace: {0}")]
    Io(#[from] io::Error),
    /// A field has a value that it cannot have.
    #[error("trace, line or record {at}: {field} is {}, expected {expected}", shown(found))]
    Field {
        /// Line (text) or token (binary), from 1.
        at: usize,
        /// The field.
        field: &'static str,
        /// What was found.
        found: String,
        /// What would be right.
        expected: String,
    },
}

/// Expert ids of a run of tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Fingerprint of the checkpoint; 0 when unknown.
    pub fingerprint: u64,
    /// Layers with routed experts.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts chosen per token and layer.
    pub top_k: usize,
    /// Tokens at the beginning that belong to the prompt.
    pub prompt_tokens: usize,
    /// `[token][layer][rank]`
    pub ids: Vec<u16>,
    /// Router weights, same shape; empty when unknown.
    pub weights: Vec<f32>,
}

impl Trace {
    /// An empty trace of a shape.
    pub fn new(layers: usize, experts: usize, top_k: usize) -> Self {
        Self { layers, experts, top_k, ..Self::default() }
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len() / (self.layers * self.top_k).max(1)
    }

    /// The experts of a token in a layer, by rank.
    pub fn chosen(&self, token: usize, layer: usize) -> &[u16] {
        &self.ids[(token * self.layers + layer) * self.top_k..][..self.top_k]
    }

    /// Refuses a shape that no model has; `at` is the line to blame.
    fn check_shape(&self, at: usize) -> Result<(), TraceError> {
        let holds = (1..=LAYERS_MAX).contains(&self.layers)
            && (1..=EXPERTS_MAX).contains(&self.experts)
            && (1..=self.experts.min(TOP_K_MAX)).contains(&self.top_k);
        if holds {
            return Ok(());
        }
        let (layers, experts, top_k) = (self.layers, self.experts, self.top_k);
        Err(TraceError::Field {
            at,
            field: "shape",
            found: format!("{layers} layers of {experts} experts, top {top_k}"),
            expected: format!(
                "1 to {LAYERS_MAX} layers, 1 to {EXPERTS_MAX} experts, top 1 to {TOP_K_MAX} of them"
            ),
        })
    }

    /// Writes the binary form: a header of 40 bytes, then for each token `layers * top_k` ids (u16) and,
    /// when the trace has them, as many weights (f32). Little-endian.
    pub fn write(&self, out: &mut impl Write) -> Result<(), TraceError> {
        let flags = if self.weights.is_empty() { 0 } else { FLAG_WEIGHTS };
        out.write_all(&MAGIC)?;
        out.write_all(&self.fingerprint.to_le_bytes())?;
        for value in [self.layers as u16, self.experts as u16, self.top_k as u16, flags] {
            out.write_all(&value.to_le_bytes())?;
        }
        out.write_all(&(self.prompt_tokens as u64).to_le_bytes())?;
        out.write_all(&(self.tokens() as u64).to_le_bytes())?;
        let per_token = (self.layers * self.top_k).max(1);
        for token in 0..self.tokens() {
            for id in &self.ids[token * per_token..][..per_token] {
                out.write_all(&id.to_le_bytes())?;
            }
            if !self.weights.is_empty() {
                for weight in &self.weights[token * per_token..][..per_token] {
                    out.write_all(&weight.to_le_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Reads the binary form, believing no length before the bytes are there.
    pub fn read(input: &mut impl Read) -> Result<Self, TraceError> {
        let mut header = [0u8; HEADER_BYTES];
        input.read_exact(&mut header)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let field = |at, field, found: String, expected: String| {
            Err(TraceError::Field { at, field, found, expected })
        };
        if header[..8] != MAGIC {
            return field(0, "magic", format!("{:?}", &header[..8]), format!("{MAGIC:?}"));
        }
        let mut trace = Self::new(half(16), half(18), half(20));
        let has_weights = half(22) == usize::from(FLAG_WEIGHTS);
        trace.fingerprint = word(8);
        let (prompt, tokens) = (word(24), word(32));
        trace.check_shape(0)?;
        if tokens > TOKENS_MAX || prompt > tokens {
            let found = format!("{prompt} of {tokens}");
            return field(0, "tokens", found, format!("at most {TOKENS_MAX}"));
        }
        trace.prompt_tokens = prompt as usize;
        let per_token = trace.layers * trace.top_k;
        let mut ids = vec![0u8; per_token * 2];
        let mut weights = vec![0u8; if has_weights { per_token * 4 } else { 0 }];
        for token in 0..tokens as usize {
            input.read_exact(&mut ids)?;
            for pair in ids.chunks_exact(2) {
                let id = u16::from_le_bytes([pair[0], pair[1]]);
                if usize::from(id) >= trace.experts {
                    let bound = format!("below {}", trace.experts);
                    return field(token + 1, "expert", id.to_string(), bound);
                }
                trace.ids.push(id);
            }
            input.read_exact(&mut weights)?;
            let floats = weights.chunks_exact(4);
            trace.weights.extend(floats.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        Ok(trace)
    }
}
