//! Requests to the hub: redirects followed by hand, the token kept from other hosts, attempts with growing waits.
//!
//! The hub answers a file's address with a redirect to a content network whose addresses carry their own signature.
//! The token goes to the hub's own origin alone. Every wait has an end and every answer a limit.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use store::io::platform::{Links, read_regular};
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::{HubError, shown_url};
use crate::name::ModelName;
use crate::repository::Repository;
use crate::settings::Settings;

/// Redirects of one request.
const REDIRECTS_MAX: usize = 5;
/// Bytes of a listing.
pub(crate) const LISTING_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a file of certificates.
const CERTIFICATES_BYTES_MAX: u64 = 16 << 20;
/// Longest wait between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How often a wait looks whether the caller gave up.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// A hub to ask.
pub struct Hub {
    pub(crate) settings: Settings,
    agent: Agent,
}

/// Why an attempt failed.
pub(crate) enum Trouble {
    /// Another attempt will fare no better.
    Final(HubError),
    /// Another attempt may succeed, not before so long.
    Passing(HubError, Option<Duration>),
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// What to ask for.
pub(crate) struct Request<'a> {
    pub(crate) name: &'a ModelName,
    pub(crate) url: &'a str,
    /// First byte and number of bytes.
    pub(crate) range: Option<(u64, u64)>,
}

/// An answer with status 200 or 206.
pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// Where it came from after redirects.
    pub(crate) url: String,
}

impl Hub {
    /// A hub by `settings`; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be read.
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        let patience = Some(settings.limits.patience);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_send_request(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience)
            .user_agent(concat!("flashmoe/", env!("CARGO_PKG_VERSION")));
        let mut roots = None;
        if let Some(file) = &settings.certificates {
            let read = read_regular(file, Links::Followed, CERTIFICATES_BYTES_MAX);
            let pem = read.map_err(|error| HubError::io(file, "read", error))?;
            let certificates: Vec<_> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(HubError::Setting {
                    name: "SSL_CERT_FILE".to_owned(),
                    reason: format!("{} holds no certificate in PEM form", file.display()),
                });
            }
            roots = Some(RootCerts::new_with_certs(&certificates));
        }
        let config = config.tls_config(tls(roots)).build();
        Ok(Self { agent: config.new_agent(), settings })
    }

    /// What the hub has under `name`: one request.
    ///
    /// # Errors
    ///
    /// No access, no such model, no connection, or a listing that breaks a rule.
    pub fn describe(&self, name: &ModelName, stop: &AtomicBool) -> Result<Repository, HubError> {
        let repository = name.repository();
        let url =
            format!("{}/api/models/{repository}/revision/main?blobs=true", self.settings.endpoint);
        let request = Request { name, url: &url, range: None };
        self.retrying(stop, || {
            let answer = self.once(&request)?;
            let body = self.read_bounded(answer, LISTING_BYTES_MAX, stop)?;
            Ok(Repository::parse(&url, &body)?)
        })
    }

    /// The page of a model, for people.
    pub(crate) fn page(&self, name: &ModelName) -> String {
        format!("{}/{}", self.settings.endpoint, name.repository())
    }

    /// The address of a file at a commit.
    pub(crate) fn file_url(&self, name: &ModelName, commit: &str, path: &str) -> String {
        let mut url = format!("{}/{}/resolve/{commit}/", self.settings.endpoint, name.repository());
        for byte in path.bytes() {
            if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
                url.push(char::from(byte));
            } else {
                url.push_str(&format!("%{byte:02X}"));
            }
        }
        url
    }

    /// Calls `attempt` until it succeeds, fails for good or has had all its attempts.
    pub(crate) fn retrying<T>(
        &self,
        stop: &AtomicBool,
        mut attempt: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(trouble) => {
                    failures += 1;
                    self.settle(trouble, failures, stop)?;
                }
            }
        }
    }

    /// Waits after the `failures`th failure in a row, or gives its error back when that was the last attempt.
    pub(crate) fn settle(
        &self,
        trouble: Trouble,
        failures: u32,
        stop: &AtomicBool,
    ) -> Result<(), HubError> {
        let limits = &self.settings.limits;
        let (error, asked) = match trouble {
            Trouble::Final(error) => return Err(error),
            Trouble::Passing(error, asked) => (error, asked),
        };
        if failures >= limits.attempts {
            return Err(match error {
                HubError::Status { url, status, .. } => {
                    HubError::Status { url, status, attempts: failures }
                }
                error => error,
            });
        }
        let doubled = limits.backoff.saturating_mul(1 << (failures - 1).min(16));
        let wait = asked.unwrap_or(Duration::ZERO).max(doubled.min(BACKOFF_MAX));
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Err(HubError::Interrupted);
            }
            std::thread::sleep(STOP_INTERVAL.min(wait));
        }
        Ok(())
    }

    /// One attempt, redirects included.
    pub(crate) fn once(&self, request: &Request<'_>) -> Result<Answer, Trouble> {
        if self.settings.offline {
            return Err(HubError::Offline { what: request.name.to_string() }.into());
        }
        let mut url = request.url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let uri: Uri = url.parse().map_err(|_| HubError::answer(&url, "is no address"))?;
            let at_hub = self.is_endpoint(&uri);
            let mut call = self.agent.get(&url);
            if let Some((token, _)) = self.settings.token.as_ref().filter(|_| at_hub) {
                call = call.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some((first, count)) = request.range {
                let last = first + count.max(1) - 1;
                call = call.header(header::RANGE, format!("bytes={first}-{last}"));
            }
            let response = call.call().map_err(|error| {
                let lasting = speaks_no_tls(&error);
                let reason = store::shown::message(error).to_string();
                let error = HubError::Network { url: shown_url(&url), reason };
                if lasting { Trouble::Final(error) } else { Trouble::Passing(error, None) }
            })?;
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                self.check_status(request, &url, at_hub, &response)?;
                return Ok(Answer { response, url });
            }
            url = target(&uri, &response).map_err(|reason| HubError::answer(&url, reason))?;
        }
        Err(HubError::answer(request.url, "more redirects than a hub needs").into())
    }

    fn is_endpoint(&self, uri: &Uri) -> bool {
        let endpoint = self.settings.endpoint.parse::<Uri>();
        endpoint.is_ok_and(|endpoint| origin(&endpoint) == origin(uri))
    }

    fn check_status(
        &self,
        request: &Request<'_>,
        url: &str,
        at_hub: bool,
        response: &Response<Body>,
    ) -> Result<(), Trouble> {
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(());
        }
        let code = status.as_u16();
        let passing = || HubError::Status { url: shown_url(url), status: code, attempts: 1 };
        let (name, page) = (request.name.to_string(), self.page(request.name));
        Err(match code {
            // A signed address of the content network that has expired: the next attempt gets a new one.
            401 | 403 | 404 if !at_hub => Trouble::Passing(passing(), None),
            401 => Trouble::Final(match &self.settings.token {
                None => HubError::TokenMissing { name, page },
                Some((_, origin)) => HubError::TokenRefused { name, origin: origin.clone() },
            }),
            403 => HubError::Gated { name, page }.into(),
            404 => {
                let what = if request.url.contains("/resolve/") { "file" } else { "model" };
                HubError::NotFound { name, what: what.to_owned(), page }.into()
            }
            408 | 425 | 429 | 500..=599 => {
                let after = retry_after(response);
                let longest = self.settings.limits.retry_after;
                match after {
                    Some(after) if after > longest => {
                        HubError::Busy { url: shown_url(url), seconds: after.as_secs() }.into()
                    }
                    after => Trouble::Passing(passing(), after),
                }
            }
            _ => HubError::answer(url, format!("status {code}")).into(),
        })
    }

    /// The whole body of an answer, of `limit` bytes at most and not slower than allowed.
    pub(crate) fn read_bounded(
        &self,
        answer: Answer,
        limit: u64,
        stop: &AtomicBool,
    ) -> Result<Vec<u8>, Trouble> {
        let mut body = Vec::new();
        let url = answer.url.clone();
        self.read_into(answer, limit + 1, stop, &mut body)?;
        if body.len() as u64 > limit {
            return Err(HubError::answer(&url, format!("more than {limit} bytes")).into());
        }
        Ok(body)
    }

    /// Appends up to `limit` bytes of an answer to `bytes`. What had arrived before a failure stays there.
    pub(crate) fn read_into(
        &self,
        answer: Answer,
        limit: u64,
        stop: &AtomicBool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let Answer { response, url } = answer;
        let reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut reader = reader.take(limit);
        let started = Instant::now();
        let (patience, slowest) = (self.settings.limits.patience, self.settings.limits.slowest);
        let mut piece = vec![0; 64 << 10];
        let mut read = 0_u64;
        let passing = |reason: String| {
            Trouble::Passing(HubError::Network { url: shown_url(&url), reason }, None)
        };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(HubError::Interrupted.into());
            }
            match reader.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    bytes.extend_from_slice(&piece[..count]);
                    read += count as u64;
                }
                Err(error) => return Err(passing(store::shown::message(error).to_string())),
            }
            // A server that sends a byte now and then holds nothing up for ever.
            let over = started.elapsed().saturating_sub(patience).as_secs_f64();
            if over > 0.0 && (read as f64) < over * slowest as f64 {
                return Err(passing(format!("{read} bytes in {:?}, too slow", started.elapsed())));
            }
        }
    }
}

/// How hosts are trusted: by `roots`, else by Mozilla's list, on macOS by the system's keychain.
fn tls(roots: Option<RootCerts>) -> TlsConfig {
    let builder = TlsConfig::builder();
    #[cfg(target_os = "macos")]
    let builder =
        builder.provider(ureq::tls::TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier);
    match roots {
        Some(roots) => builder.root_certs(roots).build(),
        None => builder.build(),
    }
}

/// Whether what answers speaks no TLS, or has a certificate that is not trusted: another attempt meets the same.
fn speaks_no_tls(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData)
}

/// Scheme, host and port.
fn origin(uri: &Uri) -> (String, String, u16) {
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    (scheme, uri.host().unwrap_or_default().to_ascii_lowercase(), port)
}

/// Where a redirect leads: to http or https, and never from https to http.
fn target(from: &Uri, response: &Response<Body>) -> Result<String, String> {
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or("a redirect without a target")?;
    let (scheme, host, _) = origin(from);
    let authority = from.authority().map_or(host, ToString::to_string);
    let target = match location {
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => location.to_owned(),
    };
    if !target.starts_with("https://") && (scheme == "https" || !target.starts_with("http://")) {
        return Err(format!("a redirect to {}", shown_url(&target)));
    }
    Ok(target)
}

/// Seconds of `Retry-After`. A date is not obeyed: the waits between attempts serve as well.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}
