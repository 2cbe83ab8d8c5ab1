//! What becomes of a read that an engine has ended: the same for experts and for rows.

use crate::cache::error::ReadCause;
use crate::io::platform::PASSING_ERRORS;
use crate::io::{FileSet, Outcome, ReadRequest};
use crate::record::block_bytes;

/// Interruptions in a row after which a read is given up.
const INTERRUPTIONS_MAX: u16 = 64;

/// What becomes of a read.
pub(crate) enum Verdict {
    /// The rest is to be read.
    Again {
        /// What is left.
        request: ReadRequest,
        /// Bytes that have come.
        moved: u64,
    },
    /// Nothing more is to be read.
    Ended {
        /// The request.
        request: ReadRequest,
        /// Bytes that have come last.
        bytes: u64,
        /// Why not all have; `None` where they have.
        failure: Option<ReadCause>,
    },
}

/// Judges what the system said about a read. Files are compared with what they were at open.
pub(crate) fn judge(files: &FileSet, mut request: ReadRequest, outcome: Outcome) -> Verdict {
    let bytes = match outcome {
        Outcome::Failed(number) => {
            let passing = PASSING_ERRORS.contains(&number);
            if passing && request.attempts < INTERRUPTIONS_MAX {
                request.attempts += 1;
                return Verdict::Again { request, moved: 0 };
            }
            let cause = match files.change(request.file).filter(|change| change.is_known()) {
                Some(change) => ReadCause::Changed(change),
                None if passing => ReadCause::Interrupted(request.attempts),
                None => ReadCause::System(number),
            };
            return Verdict::Ended { request, bytes: 0, failure: Some(cause) };
        }
        Outcome::Read(bytes) => bytes,
    };
    let ended = |request, failure| Verdict::Ended { request, bytes: bytes as u64, failure };
    if let Some(change) = files.change_in_place(request.file) {
        return ended(request, Some(ReadCause::Changed(change)));
    }
    if bytes >= request.present as usize {
        return ended(request, None);
    }
    // Continue at a block boundary, as direct I/O asks.
    let whole = bytes - bytes % block_bytes() as usize;
    if whole == 0 {
        request.attempts += 1;
        if request.attempts > INTERRUPTIONS_MAX {
            let expected = u64::from(request.present);
            return ended(request, Some(ReadCause::Short { got: bytes as u64, expected }));
        }
    }
    request.offset += whole as u64;
    request.target.advance(whole);
    request.present -= whole as u32;
    Verdict::Again { request, moved: whole as u64 }
}
