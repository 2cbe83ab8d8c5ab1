//! Who asks: what a request's head and connection say of it.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderName, USER_AGENT};

use super::follow::Trace;
use crate::work::Owner;

/// Bytes of a client's name that count.
const CLIENT_BYTES_MAX: usize = 200;

/// What is known of a request besides what was sent.
pub(super) struct Asked {
    pub(super) peer: IpAddr,
    /// It comes from a page of another origin, which was let in.
    pub(super) foreign: bool,
    /// Drawn for it.
    pub(super) identifier: String,
}

/// The id of a request in headers and in all lines of the log about it.
pub(super) fn request_id(identifier: &str) -> String {
    format!("req_{identifier}")
}

/// Who asks, as far as the scheduler cares.
#[derive(Clone)]
pub(super) struct Client {
    /// Of this request: its answer has the same, behind its protocol's prefix.
    pub(super) identifier: String,
    /// Clients take turns by this name.
    pub(super) name: String,
    /// Which conversation, by a header.
    pub(super) session: Option<String>,
    /// Whose kept prompts it may go on from.
    pub(super) owner: Owner,
    /// The trace it is part of.
    pub(super) trace: Option<u128>,
}

impl Client {
    pub(super) fn of(headers: &HeaderMap, peer: IpAddr, owner: Owner, identifier: String) -> Self {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let agent = text(&USER_AGENT).unwrap_or_default();
        let agent: String = agent.chars().take(CLIENT_BYTES_MAX).collect();
        let session = ["x-session-id", "session_id", "session-id", "x-claude-code-session-id"]
            .into_iter()
            .find_map(|name| text(&HeaderName::from_static(name)));
        let trace = Trace::of(headers).map(|trace| trace.id);
        let session = session.map(str::to_owned);
        Self { identifier, name: format!("{peer} {agent}"), session, owner, trace }
    }

    /// The request's id.
    pub(super) fn id(&self) -> String {
        request_id(&self.identifier)
    }
}
