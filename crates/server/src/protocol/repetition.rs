//! The samplers against repetition and against the obvious, DRY and XTC, under llama.cpp's names.

use text::sampling::{REPEATED_TOKENS_MAX, SEQUENCE_BREAKERS_MAX, SamplingOptions};

use super::Fields;
use crate::http::ApiError;

/// Reads the fields; ranges are checked with all the other options.
///
/// # Errors
/// Fields of a wrong type, and numbers that no option can have.
pub(super) fn read(fields: &Fields<'_>, sampling: &mut SamplingOptions) -> Result<(), ApiError> {
    let set = |name: &str, target: &mut f32| -> Result<(), ApiError> {
        if let Some(number) = fields.number(name)? {
            *target = number;
        }
        Ok(())
    };
    let dry = &mut sampling.dry;
    set("dry_multiplier", &mut dry.multiplier)?;
    set("dry_base", &mut dry.base)?;
    if let Some(length) = fields.integer("dry_allowed_length")? {
        let wrong = |_| {
            let problem = format!("must be from 1 to {REPEATED_TOKENS_MAX}, not {length}");
            fields.error("dry_allowed_length", problem)
        };
        dry.allowed_length = usize::try_from(length).map_err(wrong)?;
    }
    match fields.integer("dry_penalty_last_n")? {
        None => {}
        Some(-1) => dry.window = None,
        Some(last) => {
            let wrong =
                |_| fields.error("dry_penalty_last_n", format!("must be -1 or above, not {last}"));
            dry.window = Some(usize::try_from(last).map_err(wrong)?);
        }
    }
    let breakers = "dry_sequence_breakers";
    if let Some(items) = fields.list(breakers)? {
        if items.len() > SEQUENCE_BREAKERS_MAX {
            let problem = format!("has {} entries, more than {SEQUENCE_BREAKERS_MAX}", items.len());
            return Err(fields.error(breakers, problem));
        }
        dry.breakers = fields.strings(breakers)?;
    }
    set("xtc_probability", &mut sampling.xtc.probability)?;
    set("xtc_threshold", &mut sampling.xtc.threshold)
}
