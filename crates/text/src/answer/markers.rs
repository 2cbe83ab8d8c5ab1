//! Markers in text that is still coming: found, begun, or passed over.

use super::{Step, THINK_END};

/// Length of the longest end of `text` that begins `marker`.
pub(super) fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len())
        .rev()
        .find(|&length| marker.is_char_boundary(length) && text.ends_with(&marker[..length]))
        .unwrap_or(0)
}

/// The first of `markers` in `text`: its place and itself, the longest where several begin.
pub(super) fn first<'a>(
    text: &str,
    markers: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    let found = markers.into_iter().filter_map(|marker| Some((text.find(marker)?, marker)));
    found.min_by_key(|(at, marker)| (*at, usize::MAX - marker.len()))
}

/// Drops text that belongs to nothing, up to the end of the call or to what begins something new.
pub(super) fn skip(held: &mut String, last: bool, end: &str, start: &str) -> Step {
    let tags = [end, start, THINK_END].into_iter().filter(|tag| !tag.is_empty());
    if let Some((at, tag)) = first(held, tags.clone()) {
        held.drain(..at + if tag == end { tag.len() } else { 0 });
        return Step::Done;
    }
    if last {
        held.clear();
        return Step::Done;
    }
    let keep = tags.map(|tag| begun(held, tag)).max().unwrap_or(0);
    held.drain(..held.len() - keep);
    Step::More
}
