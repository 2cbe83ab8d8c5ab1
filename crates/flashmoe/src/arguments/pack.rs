//! `flashmoe pack`: what is packed, and what the pack changes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kernels::quantize::Method;
use store::pack::{Precision, Recipe};

use crate::failure::Failure;

/// `flashmoe pack`
#[derive(Debug, Args)]
pub(crate) struct PackArguments {
    /// The model: a folder, a GGUF file, or a name that `flashmoe list` prints
    pub(crate) source: PathBuf,
    /// Folder to make
    pub(crate) destination: PathBuf,
    /// Precision of the routed experts; anything but keep changes the model
    #[arg(long, value_name = "PRECISION", default_value = "keep")]
    experts: PrecisionChoice,
    /// Precision of the trunk's matrices; routers keep at least 8 bits, vectors stay as they are
    #[arg(long, value_name = "PRECISION", default_value = "keep")]
    trunk: PrecisionChoice,
    /// Values that share a scale where precision changes (default: 64)
    #[arg(long, value_name = "N")]
    group: Option<GroupChoice>,
    /// How scales are found where precision changes (default: search)
    #[arg(long, value_name = "METHOD")]
    method: Option<MethodChoice>,
    /// Write the error of every changed matrix to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print the sizes and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A precision as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionChoice {
    Keep,
    #[value(name = "8bit")]
    Eight,
    #[value(name = "6bit")]
    Six,
    #[value(name = "5bit")]
    Five,
    #[value(name = "4bit")]
    Four,
    #[value(name = "3bit")]
    Three,
    #[value(name = "2bit")]
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GroupChoice {
    #[value(name = "32")]
    Small,
    #[value(name = "64")]
    Middle,
    #[value(name = "128")]
    Large,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodChoice {
    /// As MLX: the extreme of larger magnitude is exact
    MinMax,
    /// As the first streaming engines: minimum and range
    Seed,
    /// Least squared error
    Search,
}

impl PackArguments {
    /// What the pack changes.
    pub(crate) fn recipe(&self) -> Result<Recipe, Failure> {
        let recipe = Recipe {
            experts: self.experts.precision(),
            trunk: self.trunk.precision(),
            group: match self.group {
                Some(GroupChoice::Small) => 32,
                None | Some(GroupChoice::Middle) => 64,
                Some(GroupChoice::Large) => 128,
            },
            method: match self.method {
                Some(MethodChoice::MinMax) => Method::MinMax,
                Some(MethodChoice::Seed) => Method::SeedMinMax,
                None | Some(MethodChoice::Search) => Method::Search,
            },
        };
        let without_effect = [
            ("--group", self.group.is_some()),
            ("--method", self.method.is_some()),
            ("--report", self.report.is_some()),
        ];
        match without_effect.into_iter().find(|&(_, given)| given) {
            Some((flag, _)) if recipe.keeps_all() => Err(Failure::usage(format!(
                "{flag} says how precision changes, but neither --experts nor --trunk changes it"
            ))),
            _ => Ok(recipe),
        }
    }
}

impl PrecisionChoice {
    fn precision(self) -> Precision {
        match self {
            Self::Keep => Precision::Keep,
            Self::Eight => Precision::Bits(8),
            Self::Six => Precision::Bits(6),
            Self::Five => Precision::Bits(5),
            Self::Four => Precision::Bits(4),
            Self::Three => Precision::Bits(3),
            Self::Two => Precision::Bits(2),
        }
    }
}
