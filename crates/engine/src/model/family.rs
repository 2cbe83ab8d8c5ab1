//! Which families there are: the name in config.json chooses the file that reads the shapes.

use serde_json::Value;

use super::config::{Family, ModelConfig};
use super::keys::Keys;
use super::{qwen3moe, qwen35moe};
use crate::EngineError;

impl ModelConfig {
    /// Reads and checks the text part of a config.json.
    ///
    /// # Errors
    /// An unsupported family, or the key that is missing, malformed or contradictory.
    pub fn from_json(root: &Value) -> Result<Self, EngineError> {
        let text = Keys(root.get("text_config").filter(|value| value.is_object()).unwrap_or(root));
        let model_type = [text.0, root]
            .iter()
            .find_map(|value| value.get("model_type").and_then(Value::as_str))
            .unwrap_or_default();
        let family = match model_type {
            "qwen3_5_moe" | "qwen3_5_moe_text" => Family::Qwen35Moe,
            "qwen3_moe" => Family::Qwen3Moe,
            other => return Err(EngineError::UnsupportedFamily { found: other.to_owned() }),
        };
        let config = match family {
            Family::Qwen35Moe => qwen35moe::config(&text, root)?,
            Family::Qwen3Moe => qwen3moe::config(&text, root)?,
        };
        config.check()?;
        Ok(config)
    }
}
