//! What a pack changed of its source, in words: the line of the approximations and the table of errors.

use store::format::{Checkpoint, Requantised};

/// Errors by layer and projection, then those of the trunk's matrices.
pub(crate) fn table(requantised: &[Requantised]) -> String {
    let experts: Vec<_> = requantised
        .iter()
        .filter_map(|matrix| Some((matrix.name.split_once(".experts.")?.0, matrix)))
        .collect();
    let mut text = String::new();
    if !experts.is_empty() {
        text.push_str("\nerror of the experts: root mean square (relative)\n");
        text.push_str("layer  gate               up                 down\n");
        for layer in experts.chunk_by(|a, b| a.0 == b.0) {
            let number = layer[0].0.trim_start_matches("layers.");
            let mut row = format!("{number:<6}");
            for projection in ["gate", "up", "down"] {
                let found = layer.iter().find(|(_, matrix)| matrix.name.ends_with(projection));
                let cell = found.map_or("-".to_owned(), |(_, matrix)| error(matrix));
                row.push_str(&format!(" {cell:<18}"));
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
    }
    let mut trunk =
        requantised.iter().filter(|matrix| !matrix.name.contains(".experts.")).peekable();
    if trunk.peek().is_some() {
        text.push_str("\nerror of the trunk: root mean square (relative)\n");
    }
    for matrix in trunk {
        text.push_str(&format!("{:<18} {}\n", error(matrix), matrix.name));
    }
    text
}

fn error(matrix: &Requantised) -> String {
    format!("{:.5} ({:.2} %)", matrix.rmse, 100.0 * matrix.relative)
}

/// One line on what a pack changed; `None` when it holds its source's bits.
pub(crate) fn line(checkpoint: &Checkpoint) -> Option<String> {
    let pack = checkpoint.pack.as_ref()?;
    if pack.requantised.is_empty() {
        return None;
    }
    let part = |part: &str| {
        let recipe = pack.recipe.get(part).and_then(serde_json::Value::as_str)?;
        (recipe != "keep").then(|| format!("{part} {recipe}"))
    };
    let parts: Vec<_> = ["experts", "trunk"].into_iter().filter_map(part).collect();
    let method = pack.recipe.get("method").and_then(serde_json::Value::as_str).unwrap_or("?");
    let squares = pack.requantised.iter().map(|matrix| matrix.relative.powi(2));
    let mean = (squares.sum::<f64>() / pack.requantised.len() as f64).sqrt();
    Some(format!(
        "approximation: the pack requantised {} ({method}), {:.1} % error of the weights on average",
        parts.join(", "),
        100.0 * mean
    ))
}

/// One line on layers of a generated pack that share their experts' file; `None` where each has its own. A figure of
/// such a pack says so: a cache of pages would find the same bytes again.
pub(crate) fn linked(checkpoint: &Checkpoint) -> Option<String> {
    let distinct = checkpoint.pack.as_ref()?.recipe.get("synthetic")?.get("distinct")?.as_u64()?;
    let with_experts = checkpoint.experts.iter().flatten().count() as u64;
    (distinct < with_experts).then(|| {
        format!("linked: the experts of {with_experts} layers lie in {distinct} files, which share their bytes")
    })
}
