//! Arguments of `flashmoe synth`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use kernels::format::{BlockFormat, FloatType, GlobalScale, ScaleType};

/// `flashmoe synth`
#[derive(Args, Clone, Debug)]
pub(crate) struct SynthArguments {
    /// 30B-A3B, 235B-A22B, 35B-A3B, 122B-A10B, 397B-A17B, 80B-A3B (Qwen3-Next), 48B-A3B (Kimi-Linear), gpt-oss-20b,
    /// gpt-oss-120b, deepseek-v3, deepseek-v3.2, deepseek-v4-flash, kimi-k2, glm-4.5-air, glm-4.6, glm-4.7,
    /// glm-4.7-flash, glm-5, glm-5.2, glm-5.3-flash, minimax-m2, flash-next, gemma-4-26b-a4b, olmoe, dots1, solar-open,
    /// hy3, vl-30B-A3B, vl-235B-A22B, ernie-4.5-21b, ernie-4.5-300b, k-exaone, ling-3-flash, tiny, tiny-next, tiny-oss,
    /// tiny-latent, tiny-rows, tiny-v4, tiny-glm, tiny-minimax, tiny-flash-next, tiny-gemma, tiny-kimi, tiny-glm-next,
    /// tiny-ling, or the path of a config.json
    pub(crate) shape: String,
    /// Folder to make; it must not exist
    pub(crate) destination: PathBuf,
    /// Layers, if not the shape's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) layers: Option<u16>,
    /// Layers with expert files of their own; those of the others are hard links to them, so that a model of any depth
    /// fits the disk. Native packs only. Figures hold where experts are read past the page cache (`--storage budget`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) distinct: Option<u16>,
    /// A head that predicts further tokens, for `--draft head`; what it says is noise as all else
    #[arg(long)]
    pub(crate) head: bool,
    /// How routed experts are stored: 2bit, 3bit, 4bit, 5bit, 6bit, 8bit, bf16, f16, f32, or in a native pack
    /// mxfp4:planes, nvfp4:multiplied, int4, fp8:128:f32, fp8:128:e8m0 and blocks of GGUF: q4_k, q6_k and others
    #[arg(long, value_name = "ENCODING", default_value = "4bit")]
    pub(crate) experts: StoredAs,
    /// How the other matrices are stored; router gates keep at least 8 bits
    #[arg(long, value_name = "ENCODING", default_value = "4bit")]
    pub(crate) trunk: StoredAs,
    /// Values that share a scale: 32, 64 or 128
    #[arg(long, value_name = "VALUES", default_value_t = 64)]
    pub(crate) group: u16,
    /// Layout of the files
    #[arg(long, value_name = "LAYOUT", default_value = "mlx")]
    pub(crate) layout: LayoutChoice,
    /// The same seed makes the same weights
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// tokenizer.json to copy; without one `bench` and `score` work, `run` does not
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
}

/// `--layout`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutChoice {
    /// Safetensors as mlx-lm writes them
    Mlx,
    /// Native pack, one aligned record per expert
    Native,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredAs {
    /// Affine groups of values of this many bits.
    Bits(u8),
    /// Not quantised.
    Bf16,
    /// Not quantised.
    F16,
    /// Not quantised.
    F32,
    /// 4-bit floats with a power of two for each 32 in planes of their own, as gpt-oss is published.
    Mxfp4Planes,
    /// 4-bit floats in groups of 16 with 8-bit floats as scales, and a number for each matrix.
    Nvfp4(GlobalScale),
    /// 4-bit integers of groups without biases, as Kimi-K2 is published.
    Int4,
    /// 8-bit floats with a scale of this type for each tile of 128 rows and columns.
    Fp8(ScaleType),
    /// Blocks of GGUF.
    Blocks(BlockFormat),
}

impl FromStr for StoredAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "2bit" => Ok(Self::Bits(2)),
            "3bit" => Ok(Self::Bits(3)),
            "4bit" => Ok(Self::Bits(4)),
            "5bit" => Ok(Self::Bits(5)),
            "6bit" => Ok(Self::Bits(6)),
            "8bit" => Ok(Self::Bits(8)),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            "f32" => Ok(Self::F32),
            "mxfp4:planes" => Ok(Self::Mxfp4Planes),
            "nvfp4:multiplied" => Ok(Self::Nvfp4(GlobalScale::Multiplies)),
            "int4" => Ok(Self::Int4),
            "fp8:128:f32" => Ok(Self::Fp8(ScaleType::Float(FloatType::F32))),
            "fp8:128:e8m0" => Ok(Self::Fp8(ScaleType::E8m0)),
            _ => BlockFormat::parse(text).map(Self::Blocks).ok_or_else(|| {
                "write 2bit, 3bit, 4bit, 5bit, 6bit, 8bit, mxfp4:planes, nvfp4:multiplied, int4, fp8:128:f32, \
                 fp8:128:e8m0, bf16, f16, f32, or a block encoding such as q4_k"
                    .to_owned()
            }),
        }
    }
}
