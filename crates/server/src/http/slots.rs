//! `/slots/N?action=save|restore|erase`: the state of a conversation, to and from a file that the client names.
//!
//! The paths, fields and answers are those of llama.cpp's server. The name is checked before anything is done with it;
//! the work is the engine thread's.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::app::App;
use super::client::Client;
use super::error::{ApiError, Kind};
use super::prepare::Received;
use super::route::named;
use crate::protocol::Fields;
use crate::work::{SlotAction, SlotDone, SlotError, SlotName};

/// An order as it was sent: what to do, and the model's name.
fn read(query: Option<&str>, body: &Map<String, Value>) -> Result<(SlotAction, String), ApiError> {
    let fields = Fields::of(body);
    let name = match named(query)? {
        name if name.is_empty() => fields.string("model")?.unwrap_or_default().to_owned(),
        name => name,
    };
    let mut pairs = query.unwrap_or_default().split('&');
    let action = pairs.find_map(|pair| pair.strip_prefix("action=")).unwrap_or_default();
    let filename = || {
        let name = fields.string("filename")?;
        let name = name.ok_or_else(|| fields.error("filename", "is missing"))?;
        SlotName::new(name).map_err(|problem| fields.error("filename", problem))
    };
    let action = match action {
        "save" => SlotAction::Save(filename()?),
        "restore" => SlotAction::Restore(filename()?),
        "erase" => SlotAction::Erase,
        _ => return Err(ApiError::field("action", "must be save, restore or erase")),
    };
    Ok((action, name))
}

fn written(slot: usize, action: &SlotAction, done: SlotDone) -> Value {
    let SlotDone { tokens, bytes, took } = done;
    let ms = took.as_secs_f64() * 1e3;
    match action {
        SlotAction::Save(name) => json!({
            "id_slot": slot, "filename": name.to_string(), "n_saved": tokens, "n_written": bytes,
            "timings": { "save_ms": ms },
        }),
        SlotAction::Restore(name) => json!({
            "id_slot": slot, "filename": name.to_string(), "n_restored": tokens, "n_read": bytes,
            "timings": { "restore_ms": ms },
        }),
        SlotAction::Erase => json!({ "id_slot": slot, "n_erased": tokens }),
    }
}

impl From<SlotError> for ApiError {
    fn from(error: SlotError) -> Self {
        let kind = match error {
            SlotError::NoFolder => Kind::NotSupported,
            SlotError::NoSlot(_) | SlotError::NoFile => Kind::NotFound,
            SlotError::Empty | SlotError::Foreign(_) | SlotError::Taken => Kind::InvalidRequest,
            SlotError::Room(_) | SlotError::Later => Kind::Unavailable,
            SlotError::Failed => Kind::Server,
        };
        Self::new(kind, error.to_string())
    }
}

impl App {
    /// Saves, restores or erases a slot.
    pub(super) async fn slot(
        self: &Arc<Self>,
        received: Received,
        slot: usize,
        query: Option<&str>,
        client: Client,
    ) -> Result<Response<Answer>, ApiError> {
        let (values, query) = (self.limits.body_values, query.map(str::to_owned));
        let look = move |received: &mut Received, _: &dyn Fn() -> bool| {
            // An order to erase says all in its path.
            let body = match received.bytes.is_empty() {
                true => Map::new(),
                false => received.object(values)?,
            };
            read(query.as_deref(), &body)
        };
        let ((action, name), mut share) = self.preparation.run(received, look).await?;
        let mut chosen = self.models.choose(&name).await?;
        share.hold(chosen.lease.take());
        let reply = chosen.worker()?.slot(slot, action.clone(), &client.owner)?;
        let done = reply.await.unwrap_or(Err(SlotError::Later))?;
        Ok(Answer::json(StatusCode::OK, &written(slot, &action, done)))
    }
}
