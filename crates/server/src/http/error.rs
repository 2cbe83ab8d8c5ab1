//! What a client did wrong, or what went wrong for it, in the shape of its protocol.
//!
//! One kind decides status, type and code in both shapes, so that the protocols cannot disagree about what an
//! overflow is. A client's mistake is never a 5xx: SDKs repeat those up to thirty times, and here each
//! repetition may cost minutes of prefill. For the same reason every mistake that would happen again carries
//! `x-should-retry: false`.

use std::time::Duration;

use hyper::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use store::shown;

use super::answer::Answer;
use crate::work::{JobError, PrepareError, Refusal};

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Whose error objects a client understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `{"error": {message, type, param, code}}`
    OpenAi,
    /// `{"type": "error", "error": {type, message}, "request_id"}`
    Anthropic,
    /// `{"error": message}`
    Ollama,
}

/// The kinds of failure; each has one status per shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidRequest,
    ContextLength {
        prompt: usize,
        context: usize,
        /// The prompt has so many tokens; false where it has more, and they were not counted.
        counted: bool,
    },
    Authentication,
    Permission,
    NotFound,
    MethodNotAllowed {
        allow: &'static str,
    },
    Timeout,
    TooLarge,
    MediaType,
    QueueFull {
        retry_after: Duration,
    },
    Server,
    NotSupported,
    Unavailable,
    /// A part of the model is in a process that is lost.
    StageLost,
    /// Weights could not be read for now.
    Unread,
    /// The weights are not all there.
    Loading {
        percent: u32,
    },
}

/// A failure with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    kind: Kind,
    message: String,
    /// The field of the request that is at fault.
    param: Option<String>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        // Messages repeat what others wrote: however they were made, they end as one short line.
        let message = shown::message(message.into()).to_string();
        Self { kind, message, param: None }
    }

    /// A field that cannot be used. The message begins with its name.
    pub(crate) fn field(param: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let param = shown::shown(param.into()).to_string();
        Self::new(Kind::InvalidRequest, format!("{param}: {problem}")).at(param)
    }

    /// Names the field that is at fault.
    pub(crate) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(shown::shown(param.into()).to_string());
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn status(&self, shape: Shape) -> StatusCode {
        match self.kind {
            Kind::InvalidRequest | Kind::ContextLength { .. } => StatusCode::BAD_REQUEST,
            Kind::Authentication => StatusCode::UNAUTHORIZED,
            Kind::Permission => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            // Anthropic's status for a server that is busy; their clients wait and come again.
            Kind::QueueFull { .. } if shape == Shape::Anthropic => {
                StatusCode::from_u16(529).expect("529 is a status number")
            }
            Kind::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            Kind::Server => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::NotSupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Unavailable | Kind::StageLost | Kind::Unread | Kind::Loading { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The object that goes into the field `error`, without Anthropic's frame.
    pub(crate) fn openai(&self) -> Value {
        let (kind, code) = match self.kind {
            Kind::InvalidRequest => ("invalid_request_error", Value::Null),
            Kind::ContextLength { .. } => {
                ("invalid_request_error", json!("context_length_exceeded"))
            }
            Kind::Authentication => ("authentication_error", json!("invalid_api_key")),
            Kind::Permission => ("permission_error", Value::Null),
            Kind::NotFound => ("not_found_error", json!("not_found")),
            Kind::MethodNotAllowed { .. } => ("invalid_request_error", json!("method_not_allowed")),
            Kind::Timeout => ("invalid_request_error", json!("request_timeout")),
            Kind::TooLarge => ("invalid_request_error", json!("request_too_large")),
            Kind::MediaType => ("invalid_request_error", json!("unsupported_media_type")),
            Kind::QueueFull { .. } => ("rate_limit_error", json!("rate_limit_exceeded")),
            Kind::Server => ("server_error", json!("server_error")),
            Kind::NotSupported => ("not_supported_error", json!("not_supported")),
            Kind::Unavailable => ("unavailable_error", json!("unavailable")),
            Kind::StageLost => ("unavailable_error", json!("stage_lost")),
            Kind::Unread => ("unavailable_error", json!("weights_unread")),
            Kind::Loading { .. } => ("unavailable_error", json!("loading")),
        };
        let mut error =
            json!({ "message": self.message, "type": kind, "param": self.param, "code": code });
        if let Kind::ContextLength { prompt, context, counted } = self.kind {
            error["n_prompt_tokens"] = prompt.into();
            if !counted {
                error["n_prompt_tokens_at_least"] = true.into();
            }
            error["n_ctx"] = context.into();
        }
        if let Kind::Loading { percent } = self.kind {
            error["percent"] = percent.into();
        }
        error
    }

    /// `{type, message}` of Anthropic's errors. An overflow has the words by which their clients know that
    /// the conversation must be compacted.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.kind {
            Kind::Authentication => "authentication_error",
            Kind::Permission => "permission_error",
            Kind::NotFound | Kind::NotSupported => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::QueueFull { .. } | Kind::Unavailable | Kind::StageLost | Kind::Loading { .. } => {
                "overloaded_error"
            }
            Kind::Server | Kind::Unread => "api_error",
            Kind::InvalidRequest
            | Kind::ContextLength { .. }
            | Kind::MethodNotAllowed { .. }
            | Kind::Timeout
            | Kind::MediaType => "invalid_request_error",
        };
        let message = match self.kind {
            Kind::ContextLength { prompt, context, counted } => {
                let more = if counted { "" } else { "more than " };
                format!("prompt is too long: {more}{prompt} tokens > {context} maximum")
            }
            _ => self.message.clone(),
        };
        json!({ "type": kind, "message": message })
    }

    /// The whole response.
    pub(crate) fn response(&self, shape: Shape, request_id: &str) -> Response<Answer> {
        let body = match shape {
            Shape::OpenAi => json!({ "error": self.openai() }),
            Shape::Ollama => json!({ "error": self.message }),
            Shape::Anthropic => {
                json!({ "type": "error", "error": self.anthropic(), "request_id": request_id })
            }
        };
        let status = self.status(shape);
        let mut response = Answer::json(status, &body);
        let headers = response.headers_mut();
        let again = matches!(
            self.kind,
            Kind::QueueFull { .. }
                | Kind::Unavailable
                | Kind::StageLost
                | Kind::Unread
                | Kind::Loading { .. }
                | Kind::Timeout
        );
        if !again {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        match self.kind {
            Kind::QueueFull { retry_after } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)));
            }
            Kind::Unavailable | Kind::StageLost | Kind::Unread | Kind::Loading { .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
            }
            Kind::Authentication => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Kind::MethodNotAllowed { allow } => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            _ => {}
        }
        response
    }
}

fn too_long(message: String, prompt: usize, context: usize, counted: bool) -> ApiError {
    ApiError::new(Kind::ContextLength { prompt, context, counted }, message)
}

impl From<PrepareError> for ApiError {
    fn from(error: PrepareError) -> Self {
        let message = error.to_string();
        match error {
            PrepareError::Conversation(_) => {
                Self::new(Kind::InvalidRequest, message).at("messages")
            }
            PrepareError::Template(_) => Self::new(Kind::Server, message),
            PrepareError::NoTemplate => Self::new(Kind::InvalidRequest, message),
            PrepareError::TooLong { prompt, context, counted }
            | PrepareError::LastTurnTooLong { prompt, context, counted } => {
                too_long(message, prompt, context, counted)
            }
            PrepareError::TooMuchText { context, .. } => too_long(message, context, context, false),
            PrepareError::Gone => Self::new(Kind::Timeout, message),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::QueueFull { retry_after, .. } => {
                Self::new(Kind::QueueFull { retry_after }, message)
            }
            Refusal::TooLong { prompt, context } => too_long(message, prompt, context, true),
            Refusal::BadRequest(_) => Self::new(Kind::InvalidRequest, message),
            Refusal::BadConstraint { field, .. } => {
                Self::new(Kind::InvalidRequest, message).at(field)
            }
            Refusal::ShuttingDown => Self::new(Kind::Unavailable, message),
        }
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        let message = error.to_string();
        match error {
            JobError::ShuttingDown => Self::new(Kind::Unavailable, message),
            JobError::StageLost => Self::new(Kind::StageLost, message),
            JobError::Unread(_) => Self::new(Kind::Unread, message),
            JobError::SlowClient(_) => Self::new(Kind::Timeout, message),
            JobError::Engine(_) | JobError::Panicked => Self::new(Kind::Server, message),
            JobError::Request { field, .. } => Self::new(Kind::InvalidRequest, message).at(field),
        }
    }
}
