//! The built-in page: a chat and a view of the engine, in files that are part of the program.
//!
//! It asks nothing of any other server, and its content policy forbids it to.

use std::sync::LazyLock;

use hyper::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH};
use hyper::{Response, StatusCode};
use twox_hash::XxHash3_64;

use crate::http::Answer;

/// Scripts, styles and requests of this server alone; no frames, no plug-ins, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
    tag: LazyLock<String>,
}

impl PartialEq for Asset {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Asset {}

/// A file that lies next to this one.
macro_rules! asset {
    ($path:literal, $content_type:expr) => {
        Asset {
            path: concat!("/", $path),
            content_type: $content_type,
            content: include_str!($path),
            tag: LazyLock::new(|| tag(include_str!($path))),
        }
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

static ASSETS: [Asset; 35] = [
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        content: include_str!("index.html"),
        tag: LazyLock::new(|| tag(include_str!("index.html"))),
    },
    asset!("page.css", STYLE),
    asset!("turns.css", STYLE),
    asset!("answer.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("blocks.js", SCRIPT),
    asset!("chats.js", SCRIPT),
    asset!("code.js", SCRIPT),
    asset!("composer.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("export.js", SCRIPT),
    asset!("follow.js", SCRIPT),
    asset!("fullness.js", SCRIPT),
    asset!("heat.js", SCRIPT),
    asset!("highlight.js", SCRIPT),
    asset!("inline.js", SCRIPT),
    asset!("key.js", SCRIPT),
    asset!("lines.js", SCRIPT),
    asset!("markdown.js", SCRIPT),
    asset!("notice.js", SCRIPT),
    asset!("options.js", SCRIPT),
    asset!("painter.js", SCRIPT),
    asset!("panels.js", SCRIPT),
    asset!("picker.js", SCRIPT),
    asset!("session.js", SCRIPT),
    asset!("status.js", SCRIPT),
    asset!("store.js", SCRIPT),
    asset!("stream.js", SCRIPT),
    asset!("table.js", SCRIPT),
    asset!("theme.js", SCRIPT),
    asset!("thinking.js", SCRIPT),
    asset!("tokens.js", SCRIPT),
    asset!("tools.js", SCRIPT),
    asset!("turns.js", SCRIPT),
    asset!("wire.js", SCRIPT),
];

/// The entity tag of a content.
fn tag(content: &str) -> String {
    format!("\"{:016x}\"", XxHash3_64::oneshot(content.as_bytes()))
}

impl Asset {
    /// The file at a path.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.path == path)
    }

    /// The file, or 304 if the browser has this version of it: it asks each time, because a server of another version
    /// may have the same address tomorrow.
    pub(crate) fn response(&'static self, headers: &HeaderMap) -> Response<Answer> {
        let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let known = known.flat_map(|tags| tags.split(',')).map(str::trim);
        let mut response = match known.into_iter().any(|known| known == *self.tag || known == "*") {
            true => Answer::empty(StatusCode::NOT_MODIFIED),
            false => Answer::whole(StatusCode::OK, self.content_type, self.content),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(tag) = HeaderValue::from_str(&self.tag) {
            headers.insert(ETAG, tag);
        }
        let mut insert = |name, value| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        };
        insert("content-security-policy", POLICY);
        insert("x-content-type-options", "nosniff");
        insert("referrer-policy", "no-referrer");
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_no_other_server_for_anything() {
        for asset in &ASSETS {
            for scheme in ["http://", "https://", "url(", "@import", "eval(", "innerHTML"] {
                assert!(!asset.content.contains(scheme), "{} has {scheme}", asset.path);
            }
            for line in asset.content.lines().filter(|line| line.contains("src=")) {
                assert!(line.contains("src=\"/"), "{}: {line}", asset.path);
            }
        }
    }

    #[test]
    fn everything_that_the_page_loads_is_served() {
        let mut loaded = vec!["/"];
        for asset in &ASSETS {
            for mark in ["src=\"", "<link rel=\"stylesheet\" href=\"", " from \""] {
                let parts = asset.content.split(mark).skip(1);
                loaded.extend(parts.filter_map(|part| part.split('"').next()));
            }
        }
        for path in &loaded {
            assert!(Asset::find(path).is_some(), "{path} is not served");
        }
        for asset in &ASSETS {
            assert!(loaded.contains(&asset.path), "{} is served and not loaded", asset.path);
            let lines = asset.content.lines().count();
            assert!(lines < 300, "{} has {lines} lines: split it by subject", asset.path);
        }
    }

    #[test]
    fn a_browser_that_has_this_version_is_not_sent_it_again() {
        let page = Asset::find("/").expect("there is a page");
        let asked = |tag: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_str(tag).expect("a tag is a value"));
            page.response(&headers)
        };
        let first = page.response(&HeaderMap::new());
        let tag = first.headers()[ETAG].to_str().expect("a tag is text");
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CACHE_CONTROL], "no-cache");
        for known in [tag, &format!("\"other\", {tag}"), "*"] {
            let again = asked(known);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            assert_eq!(again.headers()[ETAG], tag);
        }
        for other in ["\"other\"", "", tag.trim_matches('"')] {
            assert_eq!(asked(other).status(), StatusCode::OK, "{other}");
        }
        let tags: std::collections::HashSet<&str> =
            ASSETS.iter().map(|asset| asset.tag.as_str()).collect();
        assert_eq!(tags.len(), ASSETS.len());
    }
}
