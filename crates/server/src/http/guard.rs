//! Who is let in: `Host`, `Origin` and keys, decided on the headers alone.
//!
//! A server on loopback is within reach of every web page that its user opens. Two things keep pages out. A page of
//! another origin sends `Origin`, which must be the server's own or be listed. Where the server is reached through
//! loopback alone, pages that this machine serves to itself (`http://localhost:3000`) are let in as well: they come
//! from programs that run here and could call the port without a browser. A page whose name was made to point to
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
use crate::work::Owner;

/// Names by which a machine calls itself.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// What requests are measured against.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Lower-case names; `None` lets every name in.
    hosts: Option<Vec<String>>,
    origins: Vec<String>,
    /// Pages of this machine may call: nobody else reaches the server.
    local: bool,
    keys: Vec<String>,
    /// Kept prompts belong to everybody, whatever the key.
    shares: bool,
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
            local: loopback,
            keys: options.keys.clone(),
            shares: options.share_prefixes,
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
            let name = host_name(host).map(str::to_ascii_lowercase);
            if !name.is_some_and(|name| allowed.contains(&name)) {
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
        let authority = ["http://", "https://"].iter().find_map(|it| origin.strip_prefix(it));
        let name = authority.and_then(host_name);
        let is_local = name.is_some_and(|name| LOOPBACK_NAMES.contains(&name));
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let own = ["http://", "https://"].iter().any(|scheme| {
            origin.strip_prefix(scheme).is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        });
        match (own && !host.is_empty(), self.local && is_local) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(origin)),
            (false, false) => Err(refuse()),
        }
    }

    /// Refuses what a page of another site has its browser ask for, where that has no `Origin`: images, scripts,
    /// frames. Such a page cannot read the answer, but what is asked for may have an effect, and its time and size
    /// can be told.
    pub(crate) fn check_site(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(site) = headers.get("sec-fetch-site") else { return Ok(()) };
        let own = ["same-origin", "none"].iter().any(|own| site == own);
        // With an origin, that one was checked.
        if own || headers.contains_key(ORIGIN) || self.origins.iter().any(|allowed| allowed == "*")
        {
            return Ok(());
        }
        let message = "a page of another site may not have this loaded";
        Err(ApiError::new(Kind::Permission, message))
    }

    /// Refuses requests without a key, if there are keys; whose kept prompts a request may go on from. Of two right
    /// keys the one in `Authorization` counts.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> Result<Owner, ApiError> {
        if self.keys.is_empty() {
            return Ok(Owner::everybody());
        }
        let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        let mut found = None;
        for given in [plain, bearer].into_iter().flatten() {
            for key in &self.keys {
                if equal(given, key.as_bytes()) {
                    found = Some(key);
                }
            }
        }
        if let Some(key) = found {
            return Ok(if self.shares { Owner::everybody() } else { Owner::of_key(key) });
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

/// A `Host` without its port and without the dot that ends absolute names. `None` for what is neither a name nor an
/// address in brackets, with a port of digits or without one: what one reader takes for the name must be what all take.
fn host_name(host: &str) -> Option<&str> {
    let (name, port) = match host.find(']') {
        Some(end) if host.starts_with('[') => {
            let (name, rest) = host.split_at(end + 1);
            if rest.is_empty() { (name, None) } else { (name, Some(rest.strip_prefix(':')?)) }
        }
        Some(_) => return None,
        None => {
            let (name, port) = match host.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (host, None),
            };
            (name.strip_suffix('.').unwrap_or(name), port)
        }
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    port.is_none_or(is_port).then_some(name)
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
            "localhost:evil.com",
            "localhost:80:80",
            "localhost:",
            "localhost:+80",
            "localhost:65536",
            "localhost..",
            "[::1]evil.com",
            "[::1].evil.com:80",
            "[::1].",
            "[::1]:",
            "[::1]:x",
            "evil.com[::1]",
            "evil.com]:80",
            "user@localhost",
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
        let foreign = [
            "http://evil.com",
            "null",
            "https://",
            "file://",
            "http://localhost.evil.com",
            "http://localhost:80@evil.com",
            "http://127.0.0.1.evil.com:80",
            "http://evil.com#localhost",
            "chrome-extension://localhost",
        ];
        for origin in foreign {
            assert!(plain.check_origin(&with(origin)).is_err(), "{origin}");
        }
        // Pages of this machine, where no other machine reaches the server.
        let open = guard(|options| options.address = ([0, 0, 0, 0], 8080).into());
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:5173"] {
            assert_eq!(plain.check_origin(&with(origin)), Ok(Some(origin)));
            assert!(open.check_origin(&with(origin)).is_err(), "{origin}");
        }
        let listed = guard(|options| options.allowed_origins = vec!["https://chat.example".into()]);
        let request = with("https://chat.example");
        assert_eq!(listed.check_origin(&request), Ok(Some("https://chat.example")));
        assert!(listed.check_origin(&with("https://chat.example.evil.com")).is_err());
    }

    #[test]
    fn what_another_site_s_page_loads_is_refused() {
        let plain = guard(|_| {});
        let any = guard(|options| options.allowed_origins = vec!["*".into()]);
        for site in ["cross-site", "same-site", "nonsense", ""] {
            let request = headers(&[("sec-fetch-site", site)]);
            assert!(plain.check_site(&request).is_err(), "{site}");
            assert!(any.check_site(&request).is_ok(), "{site}");
        }
        for site in ["same-origin", "none"] {
            assert!(plain.check_site(&headers(&[("sec-fetch-site", site)])).is_ok(), "{site}");
        }
        let listed = [("sec-fetch-site", "cross-site"), ("origin", "https://chat.example")];
        assert!(plain.check_site(&headers(&listed)).is_ok(), "the origin decides");
        assert!(plain.check_site(&headers(&[])).is_ok(), "no browser");
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
