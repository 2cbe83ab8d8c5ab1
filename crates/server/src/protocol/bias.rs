//! `logit_bias`: an object of OpenAI's, or a list of pairs as llama.cpp's clients send it.

use serde_json::Value;

use super::Fields;
use crate::http::ApiError;

/// Reads the biases of tokens into `biases`.
///
/// # Errors
/// What is no token, an amount out of range, or biases that leave no token.
pub(super) fn read(
    fields: &Fields<'_>,
    vocabulary: usize,
    biases: &mut Vec<(u32, f32)>,
) -> Result<(), ApiError> {
    let name = fields.name("logit_bias");
    let mut add = |place: String, id: Option<u64>, amount: &Value| {
        let id = id.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocabulary);
        let unknown = format!("is no token: the vocabulary has {vocabulary}");
        let id = id.ok_or_else(|| ApiError::field(place.as_str(), unknown))?;
        let amount = match amount {
            Value::Bool(false) => Some(-100.0),
            other => other.as_f64().filter(|amount| (-100.0..=100.0).contains(amount)),
        };
        let wrong = || ApiError::field(place.as_str(), "must be a number from -100 to 100");
        let amount = amount.ok_or_else(wrong)?;
        // OpenAI's documentation: -100 is a ban.
        let amount = if amount <= -100.0 { f32::NEG_INFINITY } else { amount as f32 };
        biases.push((id, amount));
        Ok::<_, ApiError>(())
    };
    match fields.get("logit_bias") {
        Some(Value::Array(pairs)) => {
            for (index, pair) in pairs.iter().enumerate() {
                let place = format!("{name}[{index}]");
                let Some([token, amount]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(ApiError::field(place, "must be a list of a token and an amount"));
                };
                add(place, token.as_u64(), amount)?;
            }
        }
        _ => {
            let Some(object) = fields.object("logit_bias")? else { return Ok(()) };
            for (token, amount) in object.map() {
                add(object.name(token), token.parse().ok(), amount)?;
            }
        }
    }
    if bans_all(biases, vocabulary) {
        return Err(fields.error("logit_bias", "excludes every token of the vocabulary"));
    }
    Ok(())
}

/// Whether no token is left.
fn bans_all(biases: &[(u32, f32)], vocabulary: usize) -> bool {
    let banned = biases.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY);
    let mut banned: Vec<u32> = banned.map(|(id, _)| *id).collect();
    banned.sort_unstable();
    banned.dedup();
    vocabulary > 0 && banned.len() == vocabulary
}
