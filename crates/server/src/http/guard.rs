//! Who is let in: `Host`, `Origin` and keys, decided on the headers alone.
//!
//! A server on loopback is within reach of every web page that its user opens. Two things keep pages out. A page of
//! another origin sends `Origin`, which must be the server's own or be listed. A page whose name was made to point to
//! 127.0.0.1 (DNS rebinding) is of the same origin as far as its browser knows, but sends its own name as `Host`,
//! which must be a name of this machine or be listed.
//!
//! A key may come as `Authorization: Bearer` or as `x-api-key`, and is compared in a time that does not depend
//! on where it differs.

use std::hint::black_box;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use hyper::{Uri, Version};

use super::error::{ApiError, Kind};
use super::options::ServeOptions;

/// Names by which a machine calls itself.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// What requests are measured against.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Lower-case names; `None` lets every name in.
    hosts: Option<Vec<String>>,
    origins: Vec<String>,
    keys: Vec<String>,
}

impl Guard {
    pub(crate) fn new(options: &ServeOptions) -> Self {
        let listed = &options.allowed_hosts;
        let loopback = options.address.ip().is_loopback();
        // Elsewhere the machine has names that it does not know itself; the key is the protection there.
        let any = listed.iter().any(|host| host == "*") || (!loopback && listed.is_empty());
        let own = match options.address.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let hosts = || {
            let names = LOOPBACK_NAMES.iter().map(|name| (*name).to_owned());
            names.chain([own]).chain(listed.iter().map(|host| host.to_ascii_lowercase())).collect()
        };
        Self {
            hosts: (!any).then(hosts),
            origins: options.allowed_origins.clone(),
            keys: options.keys.clone(),
        }
    }

    /// Refuses names that are not this machine's.
    pub(crate) fn check_host(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let mut values = headers.get_all(HOST).iter();
        let host = match (values.next(), values.next()) {
            (None, _) if version < Version::HTTP_11 => None,
            (None, _) => return Err(ApiError::new(Kind::InvalidRequest, "Host is missing")),
            (Some(_), Some(_)) => {
                return Err(ApiError::new(Kind::InvalidRequest, "Host is given more than once"));
            }
            (Some(host), None) => Some(host.to_str().unwrap_or_default()),
        };
        let Some(allowed) = &self.hosts else { return Ok(()) };
        let target = uri.authority().map(hyper::http::uri::Authority::as_str);
        for host in [host, target].into_iter().flatten() {
            let name = host_name(host).to_ascii_lowercase();
            if !allowed.contains(&name) {
                let message = "this host name is not served here: add it with --allow-host";
                return Err(ApiError::new(Kind::Permission, message));
            }
        }
        Ok(())
    }

    /// The origin to name in the answer's CORS headers: `None` for the server's own pages and for what is no
    /// browser.
    pub(crate) fn check_origin<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> Result<Option<&'a str>, ApiError> {
        let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
        let refuse = || {
            let message = "web pages of this origin may not call this server: add it with \
                           --allow-origin";
            ApiError::new(Kind::Permission, message)
        };
        let origin = origin.to_str().map_err(|_| refuse())?;
        if self.origins.iter().any(|allowed| allowed == origin || allowed == "*") {
            return Ok(Some(origin));
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let own = ["http://", "https://"].iter().any(|scheme| {
            origin.strip_prefix(scheme).is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        });
        if own && !host.is_empty() { Ok(None) } else { Err(refuse()) }
    }

    /// Refuses requests without a key, if there are keys.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        let mut found = false;
        for given in [bearer, plain].into_iter().flatten() {
            for key in &self.keys {
                found |= equal(given, key.as_bytes());
            }
        }
        if found {
            return Ok(());
        }
        let message = if bearer.or(plain).is_some() {
            "the key is wrong"
        } else {
            "a key is needed: send Authorization: Bearer KEY or x-api-key: KEY"
        };
        Err(ApiError::new(Kind::Authentication, message))
    }
}

/// Compares in a time that depends on the length of `given` alone.
fn equal(given: &[u8], key: &[u8]) -> bool {
    let mut difference = u8::from(given.len() != key.len());
    for (index, byte) in given.iter().enumerate() {
        let other = if key.is_empty() { 0 } else { key[index % key.len()] };
        difference = black_box(difference | (byte ^ other));
    }
    difference == 0
}

/// A `Host` without its port and without the dot that ends absolute names.
fn host_name(host: &str) -> &str {
    let name = match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).expect("a name"),
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        map
    }

    fn guard(change: impl FnOnce(&mut ServeOptions)) -> Guard {
        let mut options = ServeOptions::default();
        change(&mut options);
        Guard::new(&options)
    }

    fn host(guard: &Guard, host: &str) -> bool {
        let uri = Uri::from_static("/v1/models");
        guard.check_host(Version::HTTP_11, &uri, &headers(&[("host", host)])).is_ok()
    }

    #[test]
    fn only_names_of_this_machine_are_hosts() {
        let plain = guard(|_| {});
        for name in ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:8080", "localhost.:80"] {
            assert!(host(&plain, name), "{name}");
        }
        let foreign = [
            "evil.com",
            "evil.com:8080",
            "localhost.evil.com",
            "",
            "127.0.0.1.evil.com",
            "[::2]",
            "]",
        ];
        for name in foreign {
            assert!(!host(&plain, name), "{name}");
        }
        assert!(host(
            &guard(|options| options.allowed_hosts = vec!["Box.lan".into()]),
            "box.LAN:80"
        ));
        assert!(host(&guard(|options| options.allowed_hosts = vec!["*".into()]), "evil.com"));
    }

    #[test]
    fn host_is_needed_once_and_an_absolute_target_counts_too() {
        let plain = guard(|_| {});
        let uri = Uri::from_static("/");
        assert!(plain.check_host(Version::HTTP_11, &uri, &headers(&[])).is_err());
        assert!(plain.check_host(Version::HTTP_10, &uri, &headers(&[])).is_ok());
        let twice = headers(&[("host", "localhost"), ("host", "localhost")]);
        assert!(plain.check_host(Version::HTTP_11, &uri, &twice).is_err());
        let absolute = Uri::from_static("http://evil.com/");
        let own = headers(&[("host", "localhost")]);
        assert!(plain.check_host(Version::HTTP_11, &absolute, &own).is_err());
    }

    #[test]
    fn foreign_pages_are_refused() {
        let plain = guard(|_| {});
        let with =
            |origin: &'static str| headers(&[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(plain.check_origin(&headers(&[("host", "localhost")])), Ok(None));
        assert_eq!(plain.check_origin(&with("http://localhost:8080")), Ok(None));
        for origin in ["http://evil.com", "null", "http://localhost:9090", "https://", "file://"] {
            assert!(plain.check_origin(&with(origin)).is_err(), "{origin}");
        }
        let listed = guard(|options| options.allowed_origins = vec!["https://chat.example".into()]);
        let request = with("https://chat.example");
        assert_eq!(listed.check_origin(&request), Ok(Some("https://chat.example")));
        assert!(listed.check_origin(&with("https://chat.example.evil.com")).is_err());
    }

    #[test]
    fn a_key_is_taken_from_either_header() {
        let guarded = guard(|options| options.keys = vec!["sesame".into(), "second".into()]);
        let right: [&[(&str, &str)]; 5] = [
            &[("authorization", "Bearer sesame")],
            &[("authorization", "bearer second")],
            &[("x-api-key", "sesame")],
            &[("authorization", "Bearer none"), ("x-api-key", "sesame")],
            &[("authorization", "Bearer sesame"), ("x-api-key", "none")],
        ];
        for pairs in right {
            assert!(guarded.check_key(&headers(pairs)).is_ok(), "{pairs:?}");
        }
        let wrong: [&[(&str, &str)]; 7] = [
            &[],
            &[("authorization", "sesame")],
            &[("authorization", "Basic sesame")],
            &[("authorization", "Bearer ")],
            &[("x-api-key", "sesam")],
            &[("x-api-key", "sesamesesame")],
            &[("x-api-key", "")],
        ];
        for pairs in wrong {
            let error = guarded.check_key(&headers(pairs)).expect_err("must be refused");
            assert_eq!(error.kind(), Kind::Authentication, "{pairs:?}");
        }
        assert!(guard(|_| {}).check_key(&headers(&[("x-api-key", "anything")])).is_ok());
    }
}
