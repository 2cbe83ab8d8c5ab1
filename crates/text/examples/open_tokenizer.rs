//! How long a tokenizer.json takes to open, and a text to become ids.
//!
//!     cargo run --release -p flashmoe-text --example open_tokenizer -- FILE [TEXT]
//!
//! Prints the shortest of ten openings, and of ten encodings of the text in TEXT, with a check value of the ids.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

fn shortest<T>(
    mut run: impl FnMut() -> Result<T, Box<dyn Error>>,
) -> Result<(T, Duration), Box<dyn Error>> {
    let mut best: Option<(T, Duration)> = None;
    for _ in 0..10 {
        let start = Instant::now();
        let made = run()?;
        let time = start.elapsed();
        if best.as_ref().is_none_or(|(_, least)| time < *least) {
            best = Some((made, time));
        }
    }
    best.ok_or_else(|| "no run".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let file = arguments.next().ok_or("which tokenizer.json?")?;
    let mut out = std::io::stdout().lock();
    let (tokenizer, time) = shortest(|| Ok(text::Tokenizer::from_file(&file)?))?;
    let size = tokenizer.vocabulary_size();
    writeln!(out, "{size} tokens opened in {:.1} ms", time.as_secs_f64() * 1e3)?;
    if let Some(path) = arguments.next() {
        let text = std::fs::read_to_string(path)?;
        let (ids, time) = shortest(|| Ok(tokenizer.encode(&text)?))?;
        let sum = ids.iter().fold(0_u64, |sum, &id| sum.wrapping_mul(31).wrapping_add(id.into()));
        let rate = text.len() as f64 / time.as_secs_f64() / 1e6;
        writeln!(out, "{} bytes, {} ids ({sum:016x}), {rate:.1} MB/s", text.len(), ids.len())?;
    }
    Ok(())
}
