//! `flashmoe serve`: where it listens, whom it lets in, and how much it does at once.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use server::Level;
use text::OnFull;

use super::values::on_full;
use super::{Age, ByteSize, ModelArguments, SamplingArguments};

/// Requests that may wait, unless said otherwise.
pub(crate) const QUEUE_DEFAULT: usize = 8;

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `flashmoe serve`
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Further models: requests name one, which is loaded when it is asked for and unloaded when others need its room
    #[arg(value_name = "MODEL")]
    pub(crate) more: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    /// Address to listen on; one that other machines can reach needs --api-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Key that requests must have (may be repeated); each key has kept prompts of its own
    #[arg(long, value_name = "KEY", env = "FLASHMOE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// File with such keys, one a line; empty lines and those that begin with # do not count
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Speak HTTPS with the certificate in this file, in PEM form, followed by those that vouch for it; a new one is
    /// taken within a minute
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the certificate's private key, in PEM form, without a passphrase
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let requests go on from prompts of other keys: faster for a team with one system prompt, but the holder of one
    /// key can then find out what others asked
    #[arg(long)]
    pub(crate) share_prefixes: bool,
    /// Listen on an address that other machines can reach although there is no key
    #[arg(long)]
    pub(crate) allow_remote_without_key: bool,
    /// Name that a `Host` header may have, beside those of this machine; `*` allows all (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Origin of web pages that may call the server, such as https://example.org (may be repeated); pages that this
    /// machine serves to itself may, while --host is a loopback address
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Name of the model that clients see (default: the folder's); of several models once for each, in their order
    #[arg(long, value_name = "NAME")]
    pub(crate) served_name: Vec<String>,
    /// Names of the models that are named by those of the hub, not by the commit of their folder
    #[arg(skip)]
    pub(crate) hub_names: Vec<Option<String>>,
    /// Another model, as if it were named after the first: for the configuration file (may be repeated)
    #[arg(long, value_name = "MODEL")]
    pub(crate) also: Vec<PathBuf>,
    /// Of several models, most that are loaded at once: each gets as large a part of the memory (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) models_max: Option<u8>,
    /// Conversations in progress at a time; a step computes a token of up to eight of them (default: up to 4, as many
    /// as leave each a long context)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) sequences: Option<u8>,
    /// Requests that may wait; further ones are refused
    #[arg(long, value_name = "N", default_value_t = QUEUE_DEFAULT)]
    pub(crate) queue: usize,
    /// When a conversation does not fit the context, unless its request says so (`on_full`): `stop` refuses it,
    /// `drop-oldest` leaves out its oldest turns, never the system prompt or the last turn, and says so in the answer
    #[arg(long, value_name = "WHAT", default_value_t = OnFull::Stop, value_parser = on_full())]
    pub(crate) on_full: OnFull,
    /// Points of earlier prompts to return to (default: what a sixteenth of the memory holds)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub(crate) snapshots: Option<u16>,
    /// Folder that keeps what was computed for the next start (default: nothing outlives the server)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_disk: Option<PathBuf>,
    /// Most bytes of that folder, all models together
    #[arg(long, value_name = "SIZE", default_value = "32G")]
    pub(crate) cache_disk_size: ByteSize,
    /// Most bytes written to it in a second, and only while nothing is computed
    #[arg(long, value_name = "SIZE", default_value = "200M")]
    pub(crate) cache_disk_rate: ByteSize,
    /// Most bytes written to it in a day: drives wear
    #[arg(long, value_name = "SIZE", default_value = "64G")]
    pub(crate) cache_disk_daily: ByteSize,
    /// Bytes of its file system that stay free (default: a tenth of it, 16G at the most)
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_disk_reserve: Option<ByteSize>,
    /// Folder in which several servers keep prompts for each other, on a network file system for instance. Who can
    /// read it can read the conversations, and who can write to it can change answers
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_shared: Option<PathBuf>,
    /// Most bytes of that folder, all models together; every server that writes removes what was used longest ago
    #[arg(long, value_name = "SIZE", default_value = "256G")]
    pub(crate) cache_shared_size: ByteSize,
    /// Most bytes that this server writes to it in a second
    #[arg(long, value_name = "SIZE", default_value = "200M")]
    pub(crate) cache_shared_rate: ByteSize,
    /// Folder for conversations that clients save by a name (`POST /slots/0?action=save`, then restore) (default: they
    /// may not)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) slot_save_path: Option<PathBuf>,
    /// On SIGTERM: how long work is still taken while /readyz says no, for routers to learn of it
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(crate) drain_delay: Age,
    /// On SIGTERM: how long requests that were taken may go on after that
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) drain_timeout: Age,
    /// Form of the log's lines
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Least important lines of the log: error, warn, info or debug (with what monitors poll)
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: Level,
    /// System prompt of conversations that bring none
    #[arg(long, value_name = "FILE")]
    pub(crate) system_file: Option<PathBuf>,
}
