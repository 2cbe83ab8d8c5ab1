//! The built-in page: a chat and a view of the engine, in files that are part of the program.
//!
//! It asks nothing of any other server, and its content policy forbids it to.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::http::Answer;

/// Scripts, styles and requests of this server alone; no frames, no plug-ins, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const ASSETS: [Asset; 5] = [
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        content: include_str!("index.html"),
    },
    Asset {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        content: include_str!("page.css"),
    },
    Asset { path: "/key.js", content_type: SCRIPT, content: include_str!("key.js") },
    Asset { path: "/chat.js", content_type: SCRIPT, content: include_str!("chat.js") },
    Asset { path: "/status.js", content_type: SCRIPT, content: include_str!("status.js") },
];

impl Asset {
    /// The file at a path.
    pub(crate) fn find(path: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.path == path)
    }

    pub(crate) fn response(&'static self) -> Response<Answer> {
        let mut response = Answer::whole(StatusCode::OK, self.content_type, self.content);
        let headers = response.headers_mut();
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
        let page = Asset::find("/").expect("there is a page");
        let local = ["href=\"/page.css\"", "src=\"/chat.js\"", "src=\"/status.js\""];
        assert!(local.iter().all(|link| page.content.contains(link)));
    }
}
