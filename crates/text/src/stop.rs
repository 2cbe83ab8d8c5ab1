//! Stop strings: text that ends an answer and is not part of it.
//!
//! Text arrives in pieces that know nothing of the stop strings, so whatever could be the beginning of
//! one is held back until it is decided. What has been emitted therefore never contains a stop string nor any
//! beginning of one that was completed later. The first stop string to end wins; if several end at the same
//! place, the one that began first.

use super::TextError;

/// Most stop strings of one request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;

/// Watches a stream of text.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that is now known to belong to the answer; may be empty.
    pub text: String,
    /// The stop string that ended the answer, by its index; nothing is emitted after it.
    pub stop: Option<usize>,
}

impl StopStrings {
    /// Refuses empty, overlong and too many strings by name.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.len() > STOP_STRINGS_MAX {
            return Err(TextError::value(
                "stop",
                format!("has {} strings; at most {STOP_STRINGS_MAX} are allowed", stops.len()),
            ));
        }
        for (index, stop) in stops.iter().enumerate() {
            if stop.is_empty() || stop.len() > STOP_STRING_BYTES_MAX {
                return Err(TextError::value(
                    format!("stop[{index}]"),
                    format!("has {} bytes; 1 to {STOP_STRING_BYTES_MAX} are allowed", stop.len()),
                ));
            }
        }
        Ok(Self { stops, held: String::new(), stopped: false })
    }

    /// Takes a piece of the answer.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped {
            return StopOutcome { text: String::new(), stop: None };
        }
        self.held.push_str(piece);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = found.min() {
            self.stopped = true;
            self.held.truncate(start);
            return StopOutcome { text: std::mem::take(&mut self.held), stop: Some(index) };
        }
        let keep = self.undecided();
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutcome { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the stream: what was held back belongs to the answer after all.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that is a proper beginning of a stop string.
    fn undecided(&self) -> usize {
        let of = |stop: &String| {
            let lengths = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
            lengths.filter(|&len| self.held.ends_with(&stop[..len])).max()
        };
        self.stops.iter().filter_map(of).max().unwrap_or(0)
    }
}
