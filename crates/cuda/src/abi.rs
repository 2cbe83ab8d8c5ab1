//! What the host and the kernels must agree on: codes, limits, marks, and the layout of every structure of arguments.
//!
//! `constants!` and `codes!` declare a value once, for Rust and for `kernels/abi.cuh`, which the kernels use.
//! `mirrors!` lists the fields of a structure once: Rust checks that there are no others and no gaps between them, and
//! `kernels/layouts.cuh` holds the compiler of the kernels to the same names, types, offsets and sizes, and each kernel
//! to the structure that it is launched with. Both headers are committed.
//! `UPDATE_ABI=1 cargo test -p flashmoe-cuda abi` writes them anew; then `kernels/build.sh` compiles the kernels.

use crate::launch::Kernel;

/// A constant of `kernels/abi.cuh`.
#[cfg(test)]
pub(crate) struct Constant {
    name: &'static str,
    /// What it is called in C++.
    kind: &'static str,
    value: u64,
    doc: &'static str,
}

/// Codes of one field of a structure.
#[cfg(test)]
pub(crate) struct Codes {
    name: &'static str,
    doc: &'static str,
    names: &'static [&'static str],
}

/// Constants that both sides use under the same names.
macro_rules! constants {
    ($($(#[doc = $doc:literal])+ $visible:vis const $name:ident: $type:tt = $value:expr;)+) => {
        $($(#[doc = $doc])+ $visible const $name: $type = $value;)+

        /// All of them, for the header.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[Constant] = &[$(Constant {
            name: stringify!($name),
            kind: constants!(@kind $type),
            value: $name as u64,
            doc: concat!($($doc),+),
        }),+];
    };
    (@kind u64) => { "uint64_t" };
    (@kind $other:tt) => { "uint32_t" };
}

/// Codes from 0 up: `enum Name { Variant = NAME_IN_C, .. }`.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ enum $name:ident { $($variant:ident = $code:ident),+ $(,)? })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u32)]
            pub(crate) enum $name { $(
                #[doc = concat!("`", stringify!($code), "`")]
                $variant
            ),+ }
        )+

        /// All of them, for the header.
        #[cfg(test)]
        pub(crate) const CODES: &[Codes] = &[$(Codes {
            name: stringify!($name),
            doc: concat!($($doc),+),
            names: &[$(stringify!($code)),+],
        }),+];
    };
}

constants! {
    /// Matrices of one product of the plain kernels ([`crate::launch::linear`]).
    pub const JOBS: usize = 6;
    /// Matrices of one product of a step ([`crate::launch::step_linear`]).
    pub const STEP_JOBS: usize = 6;
    /// Most experts per token that the kernels serve.
    pub const TOP_K_LIMIT: usize = 32;
    /// Most experts of a layer that the kernels serve.
    pub const EXPERTS_LIMIT: usize = 1024;
    /// Tokens of one tile of many tokens' products.
    pub const TILE_TOKENS: usize = 64;
    /// Rows of such a tile.
    pub(crate) const TILE_ROWS: usize = 128;
    /// Most tokens of one tile of products with split activations.
    pub const SPLIT_TOKENS: usize = 128;
    /// Matrices of one product of few tokens with split activations.
    pub(crate) const TILE_FEW_JOBS: usize = 6;
    /// Columns whose activations are split together.
    pub(crate) const SPLIT_COLUMNS: usize = 64;
    /// Most parts that the context of a step's token is cut into.
    pub(crate) const ATTENTION_SPLITS: usize = 64;
    /// Keys of a tile of a step; parts of a context are multiples of it.
    pub(crate) const STEP_KEYS: usize = 32;
    /// Keys of a prompt's context that are added up by themselves.
    pub(crate) const CHUNK_PART: usize = 1024;
    /// Keys of a tile of attention in f32.
    pub(crate) const PLAIN_KEYS: usize = 16;
    /// Tokens of a prompt whose inputs the delta rule copies together.
    pub(crate) const DELTA_BATCH: usize = 8;
    /// Batches of them that there is room for.
    pub(crate) const DELTA_BATCHES: usize = 4;
    /// Most values of a latent row that the kernels serve.
    pub const LATENT_ROW: usize = 576;
    /// Most of them that are the latent.
    pub const LATENT_RANK: usize = 512;
    /// Latent rows of a tile of attention in f32.
    pub(crate) const LATENT_KEYS: usize = 16;
    /// Pairs of a token and a head of a block of tensor cores.
    pub(crate) const LATENT_PAIRS: usize = 32;
    /// Floats from one pair's dots to the next one's.
    pub(crate) const LATENT_PITCH: usize = 40;
    /// Tokens for which a weight of the heads' products is read once.
    pub(crate) const LATENT_TOKENS: usize = 8;
    /// Most residual streams of a token.
    pub const STREAMS_LIMIT: usize = 8;
    /// Most values of a row of compressed attention.
    pub const ROW_DIM: usize = 512;
    /// Most values of a key by which compressed rows are chosen.
    pub const INDEX_DIM: usize = 128;
    /// Most values of a head of attention to chosen keys.
    pub const UNIT_DIM: usize = 256;
    /// Most parts that the chosen keys of a step's token are cut into.
    pub(crate) const UNIT_PARTS: usize = 32;
    /// Values of a cached row of eight bits that share a scale.
    pub(crate) const Q8_GROUP: usize = kernels::Q8_GROUP;
    /// Values that a record's list of places has for an expert: weight, scales and biases of gate, up and down.
    pub(crate) const PLACES: usize = 9;
    /// Floats between chunks of 32 columns of a staged vector.
    pub(crate) const STAGED_CHUNK: usize = 36;
    /// From this bit on the kind of an affine matrix's scales has the bits of its symmetric codes, if they are such.
    pub(crate) const SYMMETRIC_SHIFT: u32 = 8;
    /// Columns of a unit of the fused kernels.
    pub(crate) const UNIT: usize = 128;
    /// Threads of the kernels of a step, where a multiprocessor runs one block at a time.
    pub(crate) const STEP_THREADS: usize = 512;
    /// Most tokens whose products with a weight are computed at once.
    pub(crate) const SEVERAL_TOKENS: usize = 8;
    /// Threads of the experts' first half, where it runs two.
    pub(crate) const INNER_THREADS: usize = 256;
    /// Positions of which a ring has what a round's tokens were fed: those of two rounds.
    pub const ROUND_PLACES: usize = 16;
    /// Tokens of a run that one block convolves.
    pub(crate) const CONVOLVE_RUN: usize = 32;
    /// Most likely tokens that [`crate::launch::rank`] gives.
    pub const KEPT: usize = 64;
    /// Tokens whose weights [`crate::launch::rank`] adds up to one sum.
    pub const WEIGHED: usize = 1024;
    /// Logits that one block ranks.
    pub(crate) const RANKED: usize = 2048;
    /// Lists that the second pass of ranking joins.
    pub(crate) const LISTS: usize = 128;
    /// The answer to a request for a record that cannot be had.
    pub const FAILED: u64 = 1;
    /// In the address of a copy: it is under way, and will be there whatever the device does.
    pub const COPYING: u64 = 2;
    /// In a request: no token waits for the record yet.
    pub const PREFETCH: u64 = 1 << 63;
    /// In a use: the record was read from a copy.
    pub const FROM_COPY: u32 = 1 << 31;
    /// Words through which a step and the host say what went wrong.
    pub const STATUS_WORDS: usize = 3;
    /// The word of them that is 1 + the token whose router logits are not numbers.
    pub const BROKEN_TOKEN: usize = 0;
    /// The word that says that no answer will come: set by the host when it ends, by the device on timeout.
    pub const GIVEN_UP: usize = 1;
    /// The word that says how many milliseconds the device waits for an answer.
    pub const PATIENCE: usize = 2;
    /// Words that say how far down its ranking a guess is acted upon.
    pub const DEPTH_WORDS: usize = 2;
    /// The word for records in host memory, copied over the bus.
    pub const DEPTH_BUS: usize = 0;
    /// The word for records on disk.
    pub const DEPTH_DISK: usize = 1;
}

codes! {
    /// How numbers of a matrix, or its scales and biases, are stored.
    enum Kind { F32 = F32, F16 = F16, Bf16 = BF16, Affine = AFFINE, Block = BLOCK, E8m0 = E8M0 }
    /// Block encodings that the kernels read.
    enum BlockKind {
        Q4_0 = BLOCK_Q4_0, Q4_1 = BLOCK_Q4_1, Q5_0 = BLOCK_Q5_0, Q5_1 = BLOCK_Q5_1, Q8_0 = BLOCK_Q8_0,
        Q2K = BLOCK_Q2_K, Q3K = BLOCK_Q3_K, Q4K = BLOCK_Q4_K, Q5K = BLOCK_Q5_K, Q6K = BLOCK_Q6_K,
        Iq4Nl = BLOCK_IQ4_NL, Iq4Xs = BLOCK_IQ4_XS, Mxfp4 = BLOCK_MXFP4,
        Iq2Xxs = BLOCK_IQ2_XXS, Iq2Xs = BLOCK_IQ2_XS, Iq2S = BLOCK_IQ2_S, Iq3Xxs = BLOCK_IQ3_XXS,
        Iq3S = BLOCK_IQ3_S, Iq1S = BLOCK_IQ1_S, Iq1M = BLOCK_IQ1_M, Tq1_0 = BLOCK_TQ1_0, Tq2_0 = BLOCK_TQ2_0,
        Nvfp4 = BLOCK_NVFP4, Mxfp4Planes = BLOCK_MXFP4_PLANES, Fp8 = BLOCK_FP8,
    }
    /// What a vector is before it is multiplied.
    enum StageMode { Plain = PLAIN, Norm = NORM, HeadNorm = HEAD_NORM, Gated = GATED, HeadSigmoid = HEAD_SIGMOID }
    /// What becomes of the products of a job of a step.
    enum JobKind { Store = STORE, Add = ADD, Convolve = CONVOLVE, SwiGlu = SWIGLU, Inject = INJECT }
    /// How cached keys and values are stored.
    enum CacheType {
        F32 = CACHE_F32, F16 = CACHE_F16, Bf16 = CACHE_BF16, Q8 = CACHE_Q8, Fp8 = CACHE_FP8, Fp4 = CACHE_FP4,
    }
    /// A matrix of an expert, by its place in a record's list of places.
    enum ExpertPart { Gate = GATE, Up = UP, Down = DOWN }
    /// What experts are chosen and weighed by, where a bias may move the choice.
    enum ScoreKind {
        Sigmoid = SCORE_SIGMOID, SqrtSoftplus = SCORE_SQRT_SOFTPLUS, Softmax = SCORE_SOFTMAX,
    }
}

/// A field of a structure.
#[cfg_attr(not(test), expect(dead_code, reason = "the names are for the header"))]
pub(crate) struct Field {
    /// Its name on both sides.
    pub(crate) name: &'static str,
    /// Its type in C++, of the elements where there are several.
    pub(crate) element: &'static str,
    /// Number of elements of an array; 0 for a value of its own.
    pub(crate) count: usize,
    /// Bytes before it.
    pub(crate) offset: usize,
    /// Bytes of it.
    pub(crate) bytes: usize,
}

/// A structure as both sides know it.
pub(crate) struct Layout {
    /// Its name in C++.
    pub(crate) name: &'static str,
    /// Bytes of it.
    pub(crate) bytes: usize,
    /// All fields, in order.
    pub(crate) fields: &'static [Field],
    /// Kernels that take it.
    pub(crate) kernels: &'static [Kernel],
}

impl Layout {
    /// True when the fields follow each other without gaps: padding would be bytes that Rust need not initialise, and
    /// that each compiler is free to place.
    pub(crate) const fn has_no_gaps(&self) -> bool {
        let (mut index, mut end) = (0, 0);
        while index < self.fields.len() {
            if self.fields[index].offset != end {
                return false;
            }
            end += self.fields[index].bytes;
            index += 1;
        }
        end == self.bytes
    }
}

/// A structure that kernels read as the host wrote it; only `mirrors!` implements it.
pub(crate) trait Mirrored: Copy {
    /// As both sides know it.
    const LAYOUT: Layout;
}

/// The type of a field.
pub(crate) trait Value {
    /// Its name in C++, of the elements where there are several.
    const ELEMENT: &'static str;
    /// Number of elements of an array; 0 for a value of its own.
    const COUNT: usize = 0;
}

impl Value for u32 {
    const ELEMENT: &'static str = "uint32_t";
}

impl Value for u64 {
    /// An address, or an integer of that size.
    const ELEMENT: &'static str = "Word";
}

impl Value for f32 {
    const ELEMENT: &'static str = "float";
}

impl<T: Value, const N: usize> Value for [T; N] {
    const ELEMENT: &'static str = T::ELEMENT;
    const COUNT: usize = N;
}

/// Describes the field that `_at` gives, to which the types are inferred.
pub(crate) const fn field<S, T: Value>(
    name: &'static str,
    offset: usize,
    _at: fn(&S) -> &T,
) -> Field {
    Field { name, element: T::ELEMENT, count: T::COUNT, offset, bytes: size_of::<T>() }
}

/// Lists structures: `Name as NameInC { every, field } for Kernels;`. Gives [`Mirrored`] and `LAYOUTS`, all of them.
macro_rules! mirrors {
    ($($type:ident as $name:ident { $($field:ident),+ $(,)? } $(for $($kernel:ident),+)?;)+) => {
        $(
            impl crate::abi::Value for $type {
                const ELEMENT: &'static str = stringify!($name);
            }

            impl crate::abi::Mirrored for $type {
                const LAYOUT: crate::abi::Layout = crate::abi::Layout {
                    name: stringify!($name),
                    bytes: size_of::<Self>(),
                    fields: &[$(crate::abi::field(
                        stringify!($field),
                        std::mem::offset_of!(Self, $field),
                        |value: &Self| &value.$field,
                    )),+],
                    kernels: &[$($(crate::launch::Kernel::$kernel),+)?],
                };
            }

            const _: () = assert!(
                <$type as crate::abi::Mirrored>::LAYOUT.has_no_gaps(),
                concat!(stringify!($type), ": a gap between fields, or their order is another")
            );
            const _: fn($type) = |value| {
                let $type { $($field: _),+ } = value;
            };
        )+

        /// The structures of this module that kernels read.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[crate::abi::Layout] =
            &[$(<$type as crate::abi::Mirrored>::LAYOUT),+];
    };
}
pub(crate) use mirrors;

#[cfg(test)]
mod tests;
