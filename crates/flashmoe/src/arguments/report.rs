//! Arguments of `flashmoe report`.

use std::path::PathBuf;

use clap::Args;

use super::ModelArguments;

/// `flashmoe report`
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Write NAME.md and NAME.json; neither may exist
    #[arg(long, value_name = "NAME", default_value = "flashmoe-report")]
    pub(crate) to: PathBuf,
}
