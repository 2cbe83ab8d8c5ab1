//! `flashmoe stage`: which layers, where it is reached, and who may.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::{Age, ModelArguments};

/// What stands for no model, where an identity is made.
const NO_MODEL: &str = "-";

/// `flashmoe stage`
#[derive(Clone, Debug, Args)]
#[command(mut_arg("model", |model| model.required(false).default_value(NO_MODEL).hide_default_value(true)))]
pub(crate) struct StageArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Layers that this process computes, A to B - 1, counted from 0
    #[arg(long, value_name = "A:B")]
    pub(crate) layers: Option<Layers>,
    /// Address and port to listen on; without --identity it must be one of this host alone
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Folder with this process's key and certificate. Alone, without a model, makes it: certificate.pem is for the
    /// other side
    #[arg(long, value_name = "FOLDER")]
    pub(crate) identity: Option<PathBuf>,
    /// Certificate of the first process, from its identity (may be repeated)
    #[arg(long, value_name = "FILE", requires = "identity")]
    pub(crate) trust: Vec<PathBuf>,
    /// Conversations that there may be at a time: at least as many as the first process has (default: as for serve)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) sequences: Option<u8>,
    /// Points of earlier prompts to return to (default: as for serve)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub(crate) snapshots: Option<u16>,
    /// The first process is given up, and this one ends, when it says nothing for so long; it says each second that it
    /// is there
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) silence: Age,
}

impl StageArguments {
    /// Whether a model was named.
    pub(crate) fn has_model(&self) -> bool {
        self.model.model.as_os_str() != NO_MODEL
    }
}

/// `A:B`: the layers A to B - 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers(pub(crate) Range<usize>);

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let text = store::shown::quoted(text);
            format!(
                "{text} is no range of layers; write A:B for the layers A to B - 1, as in 12:24"
            )
        };
        let (start, end) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u16>().map(usize::from).map_err(|_| wrong());
        let layers = number(start)?..number(end)?;
        if layers.is_empty() { Err(wrong()) } else { Ok(Self(layers)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_layers_is_two_numbers() {
        assert_eq!("3:12".parse(), Ok(Layers(3..12)));
        for wrong in ["", "3", "3:", ":4", "4:4", "5:4", "-1:4", "3-4", "3:4:5", "a:b", "3:70000"] {
            let said = wrong.parse::<Layers>().expect_err(wrong);
            assert!(said.contains("12:24"), "{said}");
        }
    }
}
