//! The environment that the hub's own tools have, read in the same order: HF_HOME, HF_HUB_CACHE, HF_TOKEN,
//! HF_TOKEN_PATH, HF_ENDPOINT, HF_HUB_OFFLINE; and the limits that a hub is held to.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use store::io::platform::{HOME, Links, read_regular};

use crate::error::HubError;

/// The hub where nothing is said.
const ENDPOINT: &str = "https://huggingface.co";
/// Longest token file: tokens have 37 bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Where the hub is, where its cache is, and who asks.
#[derive(Clone)]
pub struct Settings {
    /// Scheme and host, without a slash at the end.
    pub endpoint: String,
    /// The folder that holds `models--OWNER--NAME`.
    pub cache: PathBuf,
    /// The token, with where it came from.
    pub token: Option<(String, String)>,
    /// No requests at all.
    pub offline: bool,
    /// A PEM file of certificates to trust in place of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// What a hub is held to.
    pub limits: Limits,
}

/// Bounds on what a hub may send and on how long it is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a range request at most; what a kill can lose is this times `connections`.
    pub segment_bytes: u64,
    /// Requests at once.
    pub connections: usize,
    /// Attempts that bring no new byte before a download is given up.
    pub attempts: u32,
    /// Wait before the second attempt; doubled for each further one, up to 30 s.
    pub backoff: Duration,
    /// Longest wait for connection, headers and each read.
    pub patience: Duration,
    /// Longest `Retry-After` that is obeyed.
    pub retry_after: Duration,
    /// A segment that is slower than this, in bytes per second, is asked for again.
    pub slowest: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            connections: 4,
            attempts: 6,
            backoff: Duration::from_secs(1),
            patience: Duration::from_secs(30),
            retry_after: Duration::from_secs(300),
            slowest: 2048,
        }
    }
}

impl Settings {
    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// A variable that cannot be used: an endpoint that is no http URL, a token that no header can carry.
    pub fn from_environment() -> Result<Self, HubError> {
        Self::read(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Reads settings by `variable`.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let path =
            |name: &str| variable(name).map(|value| expanded(PathBuf::from(value), &variable));
        let text =
            |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let home = path("HF_HOME").or_else(|| {
            let cache = path("XDG_CACHE_HOME");
            Some(cache.or_else(|| Some(path(HOME)?.join(".cache")))?.join("huggingface"))
        });
        let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| in_home("hub")).ok_or_else(|| HubError::Setting {
            name: "HF_HUB_CACHE".to_owned(),
            reason: format!("neither it nor HF_HOME nor {HOME} is set: say where models belong"),
        })?;
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let has_host = |rest: &str| !rest.is_empty() && !rest.starts_with('/');
        let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        if !rest.is_some_and(has_host) {
            return Err(HubError::Setting {
                name: "HF_ENDPOINT".to_owned(),
                reason: format!("{} is no http or https address", store::shown::quoted(&endpoint)),
            });
        }
        let named = |name: &str| text(name).map(|token| (token, name.to_owned()));
        let token = named("HF_TOKEN").or_else(|| named("HUGGING_FACE_HUB_TOKEN"));
        let token = match (token, path("HF_TOKEN_PATH").or_else(|| in_home("token"))) {
            (Some(token), _) => Some(token),
            (None, Some(file)) => token_file(&file)?,
            (None, None) => None,
        };
        if let Some((token, origin)) = &token
            && !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(HubError::Setting {
                name: origin.clone(),
                reason: "the token has characters that no token has".to_owned(),
            });
        }
        let yes =
            |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        Ok(Self {
            endpoint,
            cache,
            token: token.filter(|(token, _)| !token.is_empty()),
            offline: text("HF_HUB_OFFLINE").is_some_and(yes),
            certificates: path("SSL_CERT_FILE"),
            limits: Limits::default(),
        })
    }
}

/// `~` as the hub's tools expand it.
fn expanded(path: PathBuf, variable: &impl Fn(&str) -> Option<OsString>) -> PathBuf {
    match (path.strip_prefix("~"), variable(HOME)) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path,
    }
}

fn token_file(file: &Path) -> Result<Option<(String, String)>, HubError> {
    let length = match file.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => return Ok(None),
    };
    if length > TOKEN_BYTES_MAX {
        let reason = format!("is {length} bytes long, which no token is");
        return Err(HubError::Setting { name: file.display().to_string(), reason });
    }
    let bytes = read_regular(file, Links::Followed, TOKEN_BYTES_MAX);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|error| HubError::io(file, "read", error))?;
    Ok(Some((text.trim().to_owned(), file.display().to_string())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folders_are_found_in_the_hubs_own_order() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache;
        let home = ("HOME", "/h");
        assert_eq!(cache(&[home]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "~/f")]), Path::new("/h/f/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert!(read(&[]).is_err());
    }

    #[test]
    fn tokens_come_from_the_environment_then_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| read(variables).unwrap().token.map(|it| it.0);
        assert_eq!(token(&[home]).unwrap(), "hf_file");
        assert_eq!(token(&[home, ("HF_TOKEN", "hf_env ")]).unwrap(), "hf_env");
        assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
        assert!(read(&[home, ("HF_TOKEN", "a\nb")]).is_err());
    }

    #[test]
    fn offline_and_endpoint_are_read() {
        let home = ("HF_HOME", "/f");
        assert!(read(&[home, ("HF_HUB_OFFLINE", "1")]).unwrap().offline);
        assert!(!read(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        assert_eq!(read(&[home]).unwrap().endpoint, ENDPOINT);
        assert_eq!(read(&[home, ("HF_ENDPOINT", "http://a:1/")]).unwrap().endpoint, "http://a:1");
        for wrong in ["huggingface.co", "ftp://a", "https://", "http:///x"] {
            assert!(read(&[home, ("HF_ENDPOINT", wrong)]).is_err(), "{wrong}");
        }
    }
}
