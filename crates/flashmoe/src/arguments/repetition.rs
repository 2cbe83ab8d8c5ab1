//! Arguments of the samplers against repetition and against the obvious, DRY and XTC, under llama.cpp's names.

use clap::Args;
use text::sampling::SamplingOptions;

/// How repetitions are avoided, and the obvious.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RepetitionArguments {
    /// DRY: what a token loses that would extend a repetition; 0 is off
    #[arg(long, value_name = "M", help_heading = "Sampling", allow_negative_numbers = true)]
    dry_multiplier: Option<f32>,
    /// DRY: what each further token of the repetition multiplies that by (default: 1.75)
    #[arg(long, value_name = "B", help_heading = "Sampling", allow_negative_numbers = true)]
    dry_base: Option<f32>,
    /// DRY: tokens of the shortest repetition that counts (default: 2)
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    dry_allowed_length: Option<u32>,
    /// DRY: look at this many of the last tokens, -1 for all (default: -1)
    #[arg(
        long,
        value_name = "N",
        help_heading = "Sampling",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    dry_penalty_last_n: Option<i64>,
    /// DRY: a text that no repetition goes across, `none` for no such text (may be repeated; default: line break, `:`,
    /// `"`, `*`)
    #[arg(long, value_name = "TEXT", help_heading = "Sampling", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// XTC: the share of the draws in which all but the least likely of the likely tokens are left out; 0 is off
    #[arg(long, value_name = "P", help_heading = "Sampling", allow_negative_numbers = true)]
    xtc_probability: Option<f32>,
    /// XTC: how likely a token must be to count as likely (default: 0.1)
    #[arg(long, value_name = "P", help_heading = "Sampling", allow_negative_numbers = true)]
    xtc_threshold: Option<f32>,
}

impl RepetitionArguments {
    /// Puts what was typed in the place of what the model recommends.
    pub(crate) fn apply(&self, options: &mut SamplingOptions) {
        let set = |value: Option<f32>, target: &mut f32| {
            if let Some(value) = value {
                *target = value;
            }
        };
        let dry = &mut options.dry;
        set(self.dry_multiplier, &mut dry.multiplier);
        set(self.dry_base, &mut dry.base);
        if let Some(length) = self.dry_allowed_length {
            dry.allowed_length = length as usize;
        }
        if let Some(last) = self.dry_penalty_last_n {
            // All of them where it is negative.
            dry.window = usize::try_from(last).ok();
        }
        if !self.dry_sequence_breaker.is_empty() {
            let texts = self.dry_sequence_breaker.iter().filter(|text| *text != "none");
            dry.breakers = texts.cloned().collect();
        }
        set(self.xtc_probability, &mut options.xtc.probability);
        set(self.xtc_threshold, &mut options.xtc.threshold);
    }
}
