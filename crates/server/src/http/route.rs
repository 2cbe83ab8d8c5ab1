//! Paths: which part of the server a request is for.
//!
//! The prefix `/v1` may be left out, because half of the clients add it to the address they are given and half do not.

use hyper::Method;

use super::error::{ApiError, Kind, Shape};
use crate::ollama::Place;
use crate::page::Asset;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Asset(&'static Asset),
    Health,
    Live,
    Metrics,
    Models,
    Model(String),
    Props,
    Slots,
    /// One of them is to be saved, restored or erased.
    Slot(usize),
    /// A model is to be loaded, or unloaded.
    Load,
    Unload,
    Status,
    Trace,
    Chat,
    Responses,
    Messages,
    CountTokens,
    Completions,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    ApplyTemplate,
    /// A path of llama.cpp's own protocol.
    Completion,
    Infill,
    Version,
    Loads,
    ServerInfo,
    ModelInfo,
    /// A path of ollama's protocol.
    Ollama(Place),
}

impl Route {
    /// Whether monitors ask it again and again.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Health | Self::Live | Self::Metrics | Self::Status | Self::Loads)
    }

    /// Whether the model has to work for it.
    pub(crate) fn is_work(&self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Responses
                | Self::Messages
                | Self::Completions
                | Self::Completion
                | Self::Infill
                | Self::Ollama(Place::Chat | Place::Generate)
        )
    }

    /// Whether it is answered without a key: what a monitor asks, and the page, which has no secrets and asks its
    /// user for the key.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self, Self::Health | Self::Live | Self::Asset(_))
    }
}

/// The shape of errors of a path, whether it is served or not.
pub(crate) fn shape(path: &str) -> Shape {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    if path.starts_with("/messages") {
        Shape::Anthropic
    } else if path.starts_with("/api/") {
        Shape::Ollama
    } else {
        Shape::OpenAi
    }
}

/// Finds the route of a request.
pub(crate) fn route(method: &Method, path: &str) -> Result<Route, ApiError> {
    let get = |route| allow(method, "GET, HEAD", route);
    let post = |route| allow(method, "POST", route);
    if let Some(asset) = Asset::find(path) {
        return get(Route::Asset(asset));
    }
    match path.strip_prefix("/v1").unwrap_or(path) {
        "/health" | "/readyz" => get(Route::Health),
        "/livez" => get(Route::Live),
        "/metrics" => get(Route::Metrics),
        "/models" => get(Route::Models),
        "/models/load" if method == Method::POST => Ok(Route::Load),
        "/models/unload" if method == Method::POST => Ok(Route::Unload),
        "/props" => get(Route::Props),
        "/tokenizer_info" => get(Route::TokenizerInfo),
        "/slots" => get(Route::Slots),
        "/status" => get(Route::Status),
        "/debug/trace" => get(Route::Trace),
        "/chat/completions" => post(Route::Chat),
        "/responses" => post(Route::Responses),
        "/messages" => post(Route::Messages),
        "/messages/count_tokens" => post(Route::CountTokens),
        "/tokenize" => post(Route::Tokenize),
        "/completions" => post(Route::Completions),
        "/completion" => post(Route::Completion),
        "/infill" => post(Route::Infill),
        "/apply-template" => post(Route::ApplyTemplate),
        "/detokenize" => post(Route::Detokenize),
        "/version" | "/api/version" => get(Route::Version),
        "/loads" => get(Route::Loads),
        "/server_info" | "/get_server_info" => get(Route::ServerInfo),
        "/model_info" | "/get_model_info" => get(Route::ModelInfo),
        "/api/tags" => get(Route::Ollama(Place::Tags)),
        "/api/ps" => get(Route::Ollama(Place::Running)),
        "/api/show" => post(Route::Ollama(Place::Show)),
        "/api/chat" => post(Route::Ollama(Place::Chat)),
        "/api/generate" => post(Route::Ollama(Place::Generate)),
        "/embeddings" | "/embedding" | "/api/embed" | "/api/embeddings" => {
            Err(not_supported("a text model is served, which makes no embeddings"))
        }
        // `/api/me`: ollama's command line asks whose account it is before it pushes.
        "/api/pull" | "/api/push" | "/api/create" | "/api/copy" | "/api/delete" | "/api/me" => {
            Err(not_supported("models are managed on the command line, not by clients"))
        }
        "/rerank"
        | "/reranking"
        | "/audio/transcriptions"
        | "/images/generations"
        | "/responses/compact" => Err(not_supported("the endpoint is not supported")),
        other => {
            let nothing = || ApiError::new(Kind::NotFound, "there is nothing at this path");
            if let Some(slot) = other.strip_prefix("/slots/") {
                return post(Route::Slot(slot.parse().map_err(|_| nothing())?));
            }
            let id = other.strip_prefix("/models/").filter(|id| !id.is_empty());
            get(Route::Model(percent_decoded(id.ok_or_else(nothing)?)?))
        }
    }
}

fn not_supported(message: &str) -> ApiError {
    ApiError::new(Kind::NotSupported, message)
}

fn allow(method: &Method, allow: &'static str, route: Route) -> Result<Route, ApiError> {
    let mut methods = allow.split(", ");
    if methods.any(|allowed| allowed == method.as_str()) {
        return Ok(route);
    }
    let message = format!("only {allow} is served at this path");
    Err(ApiError::new(Kind::MethodNotAllowed { allow }, message))
}

/// The model that a query names; empty where it names none.
pub(crate) fn named(query: Option<&str>) -> Result<String, ApiError> {
    let mut pairs = query.unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix("model=")).map_or(Ok(String::new()), percent_decoded)
}

/// The text that a percent-encoded path segment stands for.
fn percent_decoded(text: &str) -> Result<String, ApiError> {
    let bad = || ApiError::new(Kind::InvalidRequest, "the path is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad()) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_routes_with_and_without_prefix() {
        assert_eq!(route(&Method::POST, "/v1/chat/completions"), Ok(Route::Chat));
        assert_eq!(route(&Method::POST, "/chat/completions"), Ok(Route::Chat));
        assert_eq!(route(&Method::HEAD, "/health"), Ok(Route::Health));
        let model = |path| route(&Method::GET, path);
        assert_eq!(model("/v1/models/a/b%20c"), Ok(Route::Model("a/b c".to_owned())));
        assert_eq!(model("/v1/models/..%2f..%2fetc"), Ok(Route::Model("../../etc".to_owned())));
        for bad in ["/v1/models/%", "/v1/models/%4", "/v1/models/%zz", "/v1/models/%ff"] {
            assert_eq!(model(bad).expect_err("is refused").kind(), Kind::InvalidRequest, "{bad}");
        }
        for missing in ["/v1", "/v2/models", "/v1/models/", "/../etc/passwd", "//", "/v1/v1/models"]
        {
            assert_eq!(model(missing).expect_err("is refused").kind(), Kind::NotFound, "{missing}");
        }
    }

    #[test]
    fn a_query_may_name_a_model() {
        assert_eq!(named(None), Ok(String::new()));
        assert_eq!(named(Some("all=1&model=a%2Fb%3Aside")), Ok("a/b:side".to_owned()));
        assert!(named(Some("model=%f")).is_err());
        let order = |path| route(&Method::POST, path);
        assert_eq!(order("/models/load"), Ok(Route::Load));
        assert_eq!(order("/v1/models/unload"), Ok(Route::Unload));
        assert_eq!(order("/slots/3"), Ok(Route::Slot(3)));
        assert!(order("/slots/-1").is_err() && order("/slots/3/4").is_err());
        assert_eq!(route(&Method::GET, "/models/load"), Ok(Route::Model("load".to_owned())));
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        let error = route(&Method::GET, "/v1/messages").expect_err("is refused");
        assert_eq!(error.kind(), Kind::MethodNotAllowed { allow: "POST" });
        assert!(route(&Method::DELETE, "/v1/models").is_err());
    }
}
