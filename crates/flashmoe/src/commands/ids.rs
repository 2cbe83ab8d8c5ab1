//! Files of token ids: a JSON array of numbers, as `score --ids` and `run --ids` take it.
//!
//! The fuzzer compiles this file too, so it depends on nothing of the program.

/// Reads the content of a file of token ids; at least one.
pub(crate) fn parse(content: &[u8]) -> Result<Vec<u32>, String> {
    let ids: Vec<u32> = serde_json::from_slice(content)
        .map_err(|error| format!("not a JSON array of token ids: {error}"))?;
    if ids.is_empty() {
        return Err("no token ids".to_owned());
    }
    Ok(ids)
}
