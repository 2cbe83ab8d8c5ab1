//! Arguments of the commands for models by name: `pull`, `list`, `show`, `rm`.

use clap::Args;

/// `flashmoe pull`
#[derive(Debug, Args)]
pub(crate) struct PullArguments {
    /// OWNER/NAME on the Hugging Face hub; :QUANT chooses among its GGUF files (default: Q4_K_M)
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// Say what would be downloaded, and download nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashmoe list`
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what to type for each model that is whole, a line each
    #[arg(long, conflicts_with = "json")]
    pub(crate) names: bool,
}

/// `flashmoe show`
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// A name that `flashmoe list` prints, a folder or a GGUF file
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flashmoe rm`
#[derive(Debug, Args)]
pub(crate) struct RemoveArguments {
    /// A name that `flashmoe list` prints; without :QUANT all of a repository
    #[arg(value_name = "MODEL")]
    pub(crate) name: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
