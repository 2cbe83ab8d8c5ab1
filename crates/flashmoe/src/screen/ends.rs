//! Where bold text and code end, if they begin at all: what follows decides, within [`HELD_MAX`] bytes of the line.
//!
//! All functions answer the same for a text and for a longer one that begins with it, unless they say [`End::Unknown`].

/// Bytes within which the end must come.
pub(super) const HELD_MAX: usize = 400;

/// Where something ends.
pub(super) enum End {
    /// At this byte.
    At(usize),
    /// Nowhere: it is text.
    None,
    /// What follows will tell.
    Unknown,
}

/// As much of a text as is looked at, and whether more of it would change nothing.
fn window(rest: &str, ended: bool) -> (&str, bool) {
    match rest.len() >= HELD_MAX {
        true => (&rest[..rest.floor_char_boundary(HELD_MAX)], true),
        false => (rest, ended),
    }
}

/// Where the mark is that ends the code which `run` marks begin.
pub(super) fn code_end(rest: &str, run: usize, ended: bool) -> End {
    let (line, complete) = window(rest, ended);
    let mut at = run.min(line.len());
    while let Some(found) = line[at..].find(['`', '\n']) {
        at += found;
        let length = line[at..].len() - line[at..].trim_start_matches('`').len();
        if length == 0 {
            return End::None;
        }
        if at + length == line.len() && !complete {
            return End::Unknown;
        }
        if length == run {
            return End::At(at);
        }
        at += length;
    }
    if complete { End::None } else { End::Unknown }
}

/// Where the stars are that end what `run` stars begin, if they begin anything: `2 * 3`, `2**3` and `***` do not.
pub(super) fn emphasis_end(before: Option<char>, rest: &str, run: usize, ended: bool) -> End {
    let next = rest[run..].chars().next();
    let inside = before.is_some_and(|it| it.is_ascii_alphanumeric());
    if run > 3 || inside || next.is_none_or(char::is_whitespace) {
        return End::None;
    }
    let (line, complete) = window(rest, ended);
    let (mut at, mut before) = (run, '*');
    while let Some(character) = line.get(at..).and_then(|it| it.chars().next()) {
        match character {
            '\n' => return End::None,
            '\\' => at += 1 + line[at + 1..].chars().next().map_or(0, char::len_utf8),
            '`' => {
                let length = line[at..].len() - line[at..].trim_start_matches('`').len();
                match code_end(&line[at..], length, complete) {
                    End::At(end) => at += end + length,
                    End::None => at += length,
                    End::Unknown => return End::Unknown,
                }
            }
            '*' => {
                let length = line[at..].len() - line[at..].trim_start_matches('*').len();
                if at + length == line.len() && !complete {
                    return End::Unknown;
                }
                let closes = length == run || (length == 3 && run < 3);
                if closes && !before.is_whitespace() {
                    return End::At(at + length - run);
                }
                at += length;
            }
            other => at += other.len_utf8(),
        }
        before = character;
    }
    if complete { End::None } else { End::Unknown }
}
