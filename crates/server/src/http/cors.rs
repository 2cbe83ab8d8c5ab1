//! What browsers are told about pages of other origins that were let in (`guard`).

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderMap, HeaderValue, VARY,
};
use hyper::{Response, StatusCode};

use super::answer::Answer;

/// What a browser may send when it asks first.
const CORS_HEADERS: &str = "authorization, content-type, x-api-key, anthropic-version, \
                            anthropic-beta, anthropic-dangerous-direct-browser-access, \
                            x-session-id, x-request-id, traceparent, tracestate, \
                            x-stainless-arch, x-stainless-lang, x-stainless-os, \
                            x-stainless-package-version, x-stainless-retry-count, \
                            x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";

/// Headers of an answer that a page of another origin may read.
const EXPOSED: &str = "request-id, x-request-id, x-session-id, x-warning, retry-after, traceparent";

/// Lets a page of `origin` read an answer.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.insert(VARY, HeaderValue::from_static("origin"));
}

/// Says yes to a listed page and nothing to others; the guard has refused foreign ones already.
pub(super) fn preflight(foreign: bool) -> Response<Answer> {
    let mut response = Answer::empty(StatusCode::NO_CONTENT);
    if foreign {
        let headers = response.headers_mut();
        let methods = HeaderValue::from_static("GET, POST, OPTIONS");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(CORS_HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}
