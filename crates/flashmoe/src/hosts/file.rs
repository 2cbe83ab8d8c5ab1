//! The file of `--stages`: where the stages of a model are, and which layers each has.
//!
//! ```toml
//! identity = "first"            # this process's folder with its key and certificate
//! silence = "10s"               # a stage that says nothing for so long is lost
//! start = "10m"                 # how long a stage may take to be there
//!
//! [[stage]]
//! address = "10.0.0.2:7777"
//! layers = "12:24"
//! certificate = "second.pem"    # from the stage's identity
//! deadline = "30s"              # one that has work and ends no layer for so long is lost; without it none
//! ```
//!
//! Paths are those next to the file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use store::io::platform::{Links, read_regular};
use store::shown;
use wire::{Credentials, Identity, Trusted};

use crate::arguments::{Age, Layers, ModelArguments};
use crate::failure::Failure;

/// Longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most stages.
const STAGES_MAX: usize = 64;
/// A stage says each second that it is there.
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// A layer's end is seen with the next sign of life.
const DEADLINE_MIN: Duration = Duration::from_secs(3);

/// As it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    identity: Option<PathBuf>,
    silence: Option<String>,
    start: Option<String>,
    #[serde(default)]
    stage: Vec<WrittenStage>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStage {
    address: String,
    layers: String,
    certificate: Option<PathBuf>,
    deadline: Option<String>,
}

/// What the file says.
#[derive(Clone, Debug)]
pub(crate) struct StagesFile {
    /// The stages, in the order of their layers.
    pub(crate) stages: Vec<RemoteStage>,
    /// A stage that says nothing for so long is lost.
    pub(crate) silence: Duration,
    /// How long a stage may take to be there.
    pub(crate) start: Duration,
    identity: Option<Identity>,
}

/// A stage in another process.
#[derive(Clone, Debug)]
pub(crate) struct RemoteStage {
    pub(crate) address: String,
    pub(crate) layers: Range<usize>,
    /// One that has work and ends no layer for so long is lost.
    pub(crate) deadline: Option<Duration>,
    certificate: Option<PathBuf>,
}

impl StagesFile {
    /// The file that the arguments name.
    ///
    /// # Errors
    /// It cannot be read, or what in it makes no sense.
    pub(crate) fn of(arguments: &ModelArguments) -> Result<Option<Self>> {
        arguments.stages.as_deref().map(Self::read).transpose()
    }

    fn read(path: &Path) -> Result<Self> {
        let shown = || format!("--stages {}", shown::path(path));
        let bytes = read_regular(path, Links::Followed, FILE_BYTES_MAX);
        let bytes = bytes.map_err(Failure::io).with_context(shown)?;
        let refuse = |found: String| Failure::usage(format!("{}: {found}", shown()));
        let text = String::from_utf8(bytes).map_err(|error| refuse(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder).map_err(|found| refuse(found).into())
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let written: Written =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let Written { identity, silence, start, stage } = written;
        if stage.is_empty() || stage.len() > STAGES_MAX {
            return Err(format!("{} stages; 1 to {STAGES_MAX} are taken", stage.len()));
        }
        let read = |name: &str, text: String| {
            text.parse::<Age>().map(|age| age.0).map_err(|error| format!("{name}: {error}"))
        };
        let time = |name: &str, text: Option<String>, usual: u64| match text {
            None => Ok(Duration::from_secs(usual)),
            Some(text) => read(name, text),
        };
        let (silence, start) = (time("silence", silence, 10)?, time("start", start, 600)?);
        if silence < SILENCE_MIN {
            return Err(format!("silence: 2s at the least, not {} s", silence.as_secs()));
        }
        let one = |stage: WrittenStage| {
            let WrittenStage { address, layers, certificate, deadline } = stage;
            let deadline = deadline.map(|text| read("deadline", text)).transpose();
            let deadline = deadline.map_err(|error| format!("stage {address}: {error}"))?;
            if deadline.is_some_and(|it| it < DEADLINE_MIN) {
                return Err(format!("stage {address}: deadline: 3s at the least"));
            }
            if certificate.is_some() && identity.is_none() {
                let found = "has a certificate, and this process has none: name its identity";
                return Err(format!("stage {address}: {found}"));
            }
            if certificate.is_none() && identity.is_some() {
                return Err(format!("stage {address}: its certificate is not named"));
            }
            let layers = layers.parse::<Layers>();
            let layers = layers.map_err(|error| format!("stage {address}: layers: {error}"))?.0;
            let certificate = certificate.map(|file| folder.join(file));
            Ok(RemoteStage { address, layers, deadline, certificate })
        };
        let stages = stage.into_iter().map(one).collect::<Result<Vec<_>, String>>()?;
        let identity = identity.map(|it| Identity::at(folder.join(it)));
        Ok(Self { stages, silence, start, identity })
    }

    /// What this process shows to a stage; `None` for one that is reached without TLS.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn credentials(&self, stage: &RemoteStage) -> Result<Option<Credentials>> {
        let (Some(identity), Some(certificate)) = (&self.identity, &stage.certificate) else {
            return Ok(None);
        };
        super::warn_of_readers(identity);
        let trusted = Trusted { files: vec![certificate.clone()] };
        Ok(Some(Credentials::read(identity, &trusted).map_err(super::failure)?))
    }
}
