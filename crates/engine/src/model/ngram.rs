//! Layers that add to every residual stream what a table of rows has for a token's last n-grams (reference:
//! transformers `Qwen4ExpTextNGramEmbedding`, `Qwen4ExpTextPLELayer`).
//!
//! A token has several rows: for each length of n-grams as many as there are heads, each in a part of the table of its
//! own. Numbers of rows follow from token ids alone, so they are known before anything is computed. Of the rows a key
//! for each stream and one value are made; a stream's agreement with its key decides how much of the value it takes,
//! and a dilated convolution over the tokens before adds to it.

use store::format::config::keys;
use store::format::rows::NGRAM_TABLE;
use store::format::{Configuration, FormatError};

use super::config::{LayerSpec, Mixer, ModelConfig};
use super::program::{Op, Product};
use super::register::Register;
use crate::EngineError;
use crate::drafts::ROUND_TOKENS;
use crate::weights::{Catalog, MatrixId, RowTableId, VectorId, VectorRole};

/// Most layers that look rows up: their constants are computed when a model is opened.
const LAYERS_MAX: usize = 8;
/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// What the seeds of layers are apart.
const LAYER_SEED: u64 = 10_007;

/// Shape of the layers that look rows up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramConfig {
    /// Their numbers, ascending.
    pub layers: Vec<usize>,
    /// Values of all rows of a token.
    pub width: usize,
    /// Tokens of the longest n-gram; the shortest has two. The taps of the convolution are as many tokens apart.
    pub tokens: usize,
    /// Rows for each length of n-grams.
    pub heads: usize,
    /// Taps of the convolution.
    pub kernel: usize,
    /// Tensors of a table.
    pub parts: usize,
    /// The hash of each layer.
    pub hashes: Vec<NgramHash>,
}

/// What hashes are made from.
struct Seed {
    vocabulary: usize,
    tokens: usize,
    heads: usize,
    /// Sizes of the parts of a table are the primes from here on.
    base: u64,
    /// The rows of a table are a multiple of it.
    divisor: u64,
    seed: u64,
    /// The token before which n-grams do not look.
    end: u32,
}

/// Refuses constants of the hash in a configuration that are not those computed: they would find other rows.
fn compare(from: &Configuration, hashes: &[NgramHash]) -> Result<(), FormatError> {
    let keys = [keys::NGRAM_MULTIPLIERS, keys::NGRAM_HEAD_SIZES, keys::NGRAM_HEAD_OFFSETS];
    for (place, key) in keys.iter().enumerate() {
        let Some(found) = from.get(key)? else { continue };
        let computed = hashes.iter().flat_map(|hash| hash.constants()[place]);
        let computed: Vec<u64> = computed.copied().collect();
        if found.len() != computed.len() {
            let found = format!("has {} numbers, the hash {}", found.len(), computed.len());
            return Err(from.invalid(key, found));
        }
        let other = found.iter().zip(&computed).position(|(&it, &right)| it as u64 != right);
        if let Some(index) = other {
            let found =
                format!("number {index} is {}, the hash has {}", found[index], computed[index]);
            return Err(from.invalid(key, found));
        }
    }
    Ok(())
}

impl NgramConfig {
    /// Reads the shape; `None` for a model without such layers.
    pub(super) fn read(from: &Configuration) -> Result<Option<Self>, FormatError> {
        let mut layers = from.required(&keys::PLE_LAYER_IDS)?;
        layers.sort_unstable();
        layers.dedup();
        if layers.is_empty() {
            return Ok(None);
        }
        if layers.len() > LAYERS_MAX {
            let found = format!("{} layers exceed the limit of {LAYERS_MAX}", layers.len());
            return Err(from.invalid(&keys::PLE_LAYER_IDS, found));
        }
        let kernel = match from.get(&keys::PLE_CONV_KERNEL_SIZE)? {
            Some(kernel) => kernel,
            None => from.required(&keys::PLE_CONV_KERNEL)?,
        };
        let end = match from.get(&keys::NGRAM_EOS_TOKEN_ID)?.as_deref() {
            Some(&[end]) => end,
            Some(ends) => {
                let found = format!("has {} tokens; the hash of n-grams needs one", ends.len());
                return Err(from.invalid(&keys::NGRAM_EOS_TOKEN_ID, found));
            }
            None => return Err(from.invalid(&keys::NGRAM_EOS_TOKEN_ID, "missing")),
        };
        let seed = Seed {
            vocabulary: from.required(&keys::VOCAB_SIZE)?,
            tokens: from.required(&keys::NGRAM_SIZE)?,
            heads: from.required(&keys::HEADS_PER_NGRAM)?,
            base: from.required(&keys::NGRAM_VOCAB_SIZE_BASE)? as u64,
            divisor: from.required(&keys::NGRAM_VOCAB_DIVISOR)? as u64,
            seed: from.required(&keys::NGRAM_SEED)? as u64,
            end,
        };
        let hashes: Vec<_> = (0..layers.len()).map(|place| NgramHash::new(&seed, place)).collect();
        compare(from, &hashes)?;
        Ok(Some(Self {
            hashes,
            layers: layers.into_iter().map(|number| number - 1).collect(),
            width: from.required(&keys::PLE_EMBED_DIM)?,
            tokens: seed.tokens,
            heads: seed.heads,
            kernel,
            parts: from.required(&keys::SPLIT_NGRAM_PARTS)?,
        }))
    }

    /// Relations between keys that each is plausible alone.
    pub(super) fn check(
        &self,
        layers: &[LayerSpec],
        from: &Configuration,
    ) -> Result<(), FormatError> {
        let wrong = |found| Err(from.invalid(&keys::PLE_LAYER_IDS, found));
        for &layer in &self.layers {
            match layers.get(layer) {
                None => return wrong(format!("{} of {} layers", layer + 1, layers.len())),
                Some(spec) if spec.mixer != Mixer::DeltaNet => {
                    return wrong(format!("layer {} has no linear attention", layer + 1));
                }
                Some(_) => {}
            }
        }
        if !self.width.is_multiple_of(self.rows()) {
            let found = format!("{} is no multiple of {} rows", self.width, self.rows());
            return Err(from.invalid(&keys::PLE_EMBED_DIM, found));
        }
        Ok(())
    }

    /// Rows of a token.
    pub fn rows(&self) -> usize {
        (self.tokens - 1) * self.heads
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.width / self.rows()
    }

    /// Tokens before a token that its convolution sees.
    pub fn reach(&self) -> usize {
        self.tokens * (self.kernel - 1)
    }

    /// Tokens of which a sequence keeps what later ones need, so that those of a round lie apart.
    pub fn kept_tokens(&self) -> usize {
        self.reach().max(ROUND_TOKENS)
    }

    /// The place of a layer among those that look rows up.
    pub fn place(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|&it| it == layer)
    }
}

/// The hash of one layer: from token ids to numbers of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    /// For the token itself, its predecessor, and so on.
    multipliers: Vec<u64>,
    /// Rows of each head, all of the shortest n-grams first.
    sizes: Vec<u64>,
    /// Number of each head's first row.
    offsets: Vec<u64>,
    /// Rows of the table.
    rows: u64,
    heads: usize,
    end: u32,
}

impl NgramHash {
    /// The hash of the layer with number `place` among those that look rows up.
    fn new(config: &Seed, place: usize) -> Self {
        let half = (((1 << 63) - 1) / config.vocabulary as u64 / 2).max(1);
        let seed = config.seed.wrapping_add(LAYER_SEED * place as u64);
        let multiplier = |index: usize| {
            let state = seed.wrapping_add(GAMMA.wrapping_mul(index as u64 + 1));
            2 * (split_mix(state) % half) + 1
        };
        let primes = (config.base..).filter(|&number| is_prime(number));
        let heads = (config.tokens - 1) * config.heads;
        let sizes: Vec<u64> = primes.skip(place * heads).take(heads).collect();
        let mut rows = 0;
        let offsets = sizes.iter().map(|size| {
            rows += size;
            rows - size
        });
        Self {
            offsets: offsets.collect(),
            multipliers: (0..config.tokens).map(multiplier).collect(),
            rows: rows.next_multiple_of(config.divisor),
            sizes,
            heads: config.heads,
            end: config.end,
        }
    }

    /// Multipliers, rows of each head, and their first rows.
    fn constants(&self) -> [&[u64]; 3] {
        [&self.multipliers, &self.sizes, &self.offsets]
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends the rows of a token. `before` gives the token so many places before it, from 1 on; `None` before the
    /// first of its sequence. What lies before the nearest end of a text reads as that end.
    pub fn push_rows(
        &self,
        token: u32,
        before: impl Fn(usize) -> Option<u32>,
        rows: &mut Vec<u64>,
    ) {
        let mut mixed = u64::from(token) * self.multipliers[0];
        let mut ended = false;
        for (back, multiplier) in self.multipliers.iter().enumerate().skip(1) {
            let found = if ended { None } else { before(back) };
            let other = found.unwrap_or(self.end);
            ended |= other == self.end;
            mixed ^= u64::from(other) * multiplier;
            let heads = (back - 1) * self.heads..back * self.heads;
            let numbers = self.sizes[heads.clone()].iter().zip(&self.offsets[heads]);
            rows.extend(numbers.map(|(size, offset)| mixed % size + offset));
        }
    }
}

fn split_mix(state: u64) -> u64 {
    let state = state.wrapping_add(GAMMA);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn is_prime(number: u64) -> bool {
    let mut divisors = (3..).step_by(2).take_while(|divisor| divisor * divisor <= number);
    number == 2 || number > 2 && number % 2 == 1 && divisors.all(|it| !number.is_multiple_of(it))
}

/// What a layer of hashed n-grams mixes into the streams, once it has a token's rows.
#[derive(Clone, Copy, Debug)]
pub struct NgramMixing {
    /// Norm of keys, of each stream by itself, `[streams * hidden]`.
    pub key_norm: VectorId,
    /// Norm of the streams, as wide.
    pub query_norm: VectorId,
    /// Norm of what the convolution sees, as wide.
    pub convolution_norm: VectorId,
    /// `[streams * hidden, kernel]`, newest tap last.
    pub convolution: VectorId,
}

/// Weights of a layer of hashed n-grams.
#[derive(Clone, Copy, Debug)]
pub struct NgramLayer {
    /// Its table.
    pub table: RowTableId,
    /// `[streams * hidden, width]`
    pub key: MatrixId,
    /// `[hidden, width]`
    pub value: MatrixId,
    /// What follows.
    pub mixing: NgramMixing,
}

impl NgramLayer {
    /// Declares the tensors of `layer`, below `prefix` (`layers.N`).
    ///
    /// # Errors
    /// The tensor that is missing, has another shape, or other constants of the hash.
    pub(super) fn declare(
        config: &ModelConfig,
        shape: &NgramConfig,
        (layer, prefix): (usize, &str),
        catalog: &mut Catalog<'_>,
    ) -> Result<Self, EngineError> {
        let name = |part: &str| format!("{prefix}.ple.{part}");
        let place = shape.place(layer).expect("a layer that looks rows up");
        let hash = &shape.hashes[place];
        let (wide, norm) = (config.streams() * config.hidden, VectorRole::Norm);
        let numbers = |part: &str| name(&format!("ple_embedding.{part}"));
        catalog.numbers(&numbers("layer_multipliers"), &hash.multipliers)?;
        catalog.numbers(&numbers("ngram_heads_vocab_sizes"), &hash.sizes)?;
        catalog.numbers(&numbers("ngram_heads_offsets"), &hash.offsets)?;
        let table = format!("{prefix}.{NGRAM_TABLE}");
        Ok(Self {
            table: catalog.row_table(&table, (hash.rows, shape.columns()), shape.parts)?,
            key: catalog.matrix(&name("key_proj"), wide, shape.width)?,
            value: catalog.matrix(&name("value_proj"), config.hidden, shape.width)?,
            mixing: NgramMixing {
                key_norm: catalog.vector(&name("norm_key"), wide, norm)?,
                query_norm: catalog.vector(&name("norm_query"), wide, norm)?,
                convolution_norm: catalog.vector(&name("norm_conv"), wide, norm)?,
                convolution: catalog.vector(
                    &name("conv1d"),
                    wide * shape.kernel,
                    VectorRole::Plain,
                )?,
            },
        })
    }

    /// `x_j += u_j + silu(conv(norm(u_j)))` for each stream, with `u_j` = the rows' value as stream `j` gates it.
    pub(super) fn ops(&self) -> Vec<Op> {
        use Register::{Normed, Rows, StreamValues};
        let products = [(self.key, StreamValues), (self.value, Normed)];
        vec![
            Op::GatherRows { table: self.table },
            Op::Linear { from: Rows, products: products.map(Product::from).to_vec() },
            Op::MixNgrams(self.mixing),
        ]
    }
}

/// What the convolution sees of a token at `position`, oldest first: the number of a tap, and its position.
pub fn taps(shape: &NgramConfig, position: usize) -> impl Iterator<Item = (usize, usize)> {
    let (last, apart) = (shape.kernel - 1, shape.tokens);
    let at = move |tap| Some((tap, position.checked_sub(apart * (last - tap))?));
    (0..shape.kernel).filter_map(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 248_044;

    /// The hash of a layer of the release, if it had several.
    fn released(place: usize) -> NgramHash {
        let seed = Seed {
            vocabulary: 248_320,
            tokens: 3,
            heads: 8,
            base: 20_000_000,
            divisor: 128,
            seed: 1234,
            end: END,
        };
        NgramHash::new(&seed, place)
    }

    /// Rows of each token of a sequence.
    fn rows(hash: &NgramHash, ids: &[u32]) -> Vec<Vec<u64>> {
        let of = |at: usize| {
            let mut rows = Vec::new();
            let before = |back: usize| Some(ids[at.checked_sub(back)?]);
            hash.push_rows(ids[at], before, &mut rows);
            rows
        };
        (0..ids.len()).map(of).collect()
    }

    /// The constants of the release, and rows that the reference computes with them.
    #[test]
    fn constants_and_rows_are_those_of_the_release() {
        let hash = released(0);
        assert_eq!(hash.multipliers, [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]);
        assert_eq!((hash.sizes[0], hash.sizes[15]), (20_000_003, 20_000_171));
        assert_eq!((hash.offsets[0], hash.offsets[1], hash.rows), (0, 20_000_003, 320_001_536));
        let found = rows(&hash, &[1000, 2000, 3000, 248_044, 4000]);
        let heads = found.iter().map(|rows| [rows[0], rows[7], rows[8], rows[15]]);
        let expected = [
            [1_876_085, 142_751_402, 178_377_549, 304_819_575],
            [19_790_471, 152_120_809, 172_190_926, 315_915_558],
            [17_238_551, 147_589_323, 163_669_071, 302_034_413],
            [2_413_878, 141_212_937, 179_088_783, 311_229_572],
            [6_892_213, 151_710_079, 176_841_435, 308_994_327],
        ];
        assert_eq!(heads.collect::<Vec<_>>(), expected);
    }

    /// An end hides what is before it from later tokens, not from itself.
    #[test]
    fn n_grams_do_not_look_before_an_end() {
        let hash = released(0);
        let [a, b] = [[7, 8, END, 9, 10], [5, 6, END, 9, 10]].map(|ids| rows(&hash, &ids));
        assert_ne!(a[2], b[2]);
        assert_eq!(a[3..], b[3..]);
        assert_eq!(a[3], rows(&hash, &[9])[0]);
    }

    /// Another layer has primes and multipliers of its own.
    #[test]
    fn layers_have_constants_of_their_own() {
        let [first, second] = [0, 1].map(released);
        assert!(second.sizes[0] > first.sizes[15]);
        assert_ne!(first.multipliers, second.multipliers);
    }

    #[test]
    fn taps_are_as_far_apart_as_n_grams_are_long() {
        let shape = NgramConfig {
            layers: vec![1],
            width: 2560,
            tokens: 3,
            heads: 8,
            kernel: 4,
            parts: 128,
            hashes: vec![released(0)],
        };
        let all = |position| taps(&shape, position).collect::<Vec<_>>();
        assert_eq!(all(2), [(3, 2)]);
        assert_eq!(all(7), [(1, 1), (2, 4), (3, 7)]);
        assert_eq!(all(10), [(0, 1), (1, 4), (2, 7), (3, 10)]);
    }
}
