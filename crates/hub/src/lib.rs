//! Models by name: `OWNER/NAME[:QUANT]` on the Hugging Face hub, downloaded into the hub's own cache layout.
//!
//! [`Cache`] finds, lists and removes what is on disk, whichever program downloaded it. [`Hub`] talks HTTP: it
//! describes a repository, pulls the files of a [`Selection`] and reads the headers of safetensors files by range
//! requests. Everything that a hub sends is untrusted: names, sizes, redirects and lists are checked and bounded.
#![forbid(unsafe_code)]

mod cache;
mod client;
mod error;
mod headers;
mod name;
mod pull;
mod repository;
mod scratch;
mod segments;
mod select;
mod settings;
mod snapshot;
mod unfinished;
mod writer;

pub use cache::{Cache, Cached, CachedFile, Found};
pub use client::Hub;
pub use error::HubError;
pub use name::{ModelName, Quant};
pub use pull::{Pulled, Status};
pub use repository::{BlobId, Repository, RepositoryFile};
pub use scratch::Scratch;
pub use select::{Selection, quant_of, quants};
pub use settings::{Limits, Settings};
