//! Sampling options: names, defaults, ranges.
//!
//! Names are those of requests and of generation_config.json. The defaults change nothing: plain sampling from the
//! model's distribution. `validate` refuses what is outside its range by name; nothing is clamped.

use super::{DryOptions, SamplingError, XtcOptions};
use serde_json::Value;

/// Most alternatives reported per token (OpenAI's limit).
pub const TOP_LOGPROBS_MAX: usize = 20;

/// How tokens are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the most likely token (greedy). Finite, at least 0.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens that together have this probability; 1 keeps all. In (0, 1].
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all. In 0..=1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred (CTRL, Keskar et al. 2019); 1 is off.
    /// Finite, above 0.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occurred in the answer; 0 is off. Finite.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the answer; 0 is off. Finite.
    pub frequency_penalty: f32,
    /// The penalties look at this many of the last tokens; `None` looks at all.
    pub penalty_window: Option<usize>,
    /// Makes what would extend a repetition less likely; off by default.
    pub dry: DryOptions,
    /// Leaves out the most likely tokens now and then; off by default.
    pub xtc: XtcOptions,
    /// Seed of the generator. A caller whose user gave none draws one and reports it.
    pub seed: u64,
    /// Added to the logits of these tokens; minus infinity excludes a token. Not NaN, not plus infinity.
    pub logit_bias: Vec<(u32, f32)>,
    /// Reports log-probabilities of the drawn token and of this many most likely ones (0 to 20). They are the
    /// model's own: before penalties, bias and temperature.
    pub logprobs: Option<usize>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            dry: DryOptions::default(),
            xtc: XtcOptions::default(),
            seed: 0,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

impl SamplingOptions {
    /// The most likely token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The defaults that a checkpoint recommends in its generation_config.json.
    ///
    /// `do_sample: false` means greedy; where it is absent, the values given are meant to be used.
    /// `top_k` of 0 or -1 is off. Fields that are absent or null keep the defaults of this type.
    pub fn from_generation_config(config: &Value) -> Result<Self, SamplingError> {
        let mut options = Self::default();
        set(config, "temperature", &mut options.temperature)?;
        set(config, "top_p", &mut options.top_p)?;
        set(config, "min_p", &mut options.min_p)?;
        set(config, "repetition_penalty", &mut options.repetition_penalty)?;
        set(config, "presence_penalty", &mut options.presence_penalty)?;
        set(config, "frequency_penalty", &mut options.frequency_penalty)?;
        if let Some(top_k) = config.get("top_k").filter(|value| !value.is_null()) {
            options.top_k = match top_k.as_i64() {
                Some(-1) => 0,
                Some(k @ 0..) => usize::try_from(k).unwrap_or(usize::MAX),
                _ => {
                    return Err(SamplingError::parameter(
                        "top_k",
                        top_k,
                        "an integer, -1 or above",
                    ));
                }
            };
        }
        match config.get("do_sample") {
            None | Some(Value::Null | Value::Bool(true)) => {}
            Some(Value::Bool(false)) => options.temperature = 0.0,
            Some(other) => {
                return Err(SamplingError::parameter("do_sample", other, "true or false"));
            }
        }
        options.validate()?;
        Ok(options)
    }

    /// Checks every option that does not depend on the vocabulary.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |holds: bool, name, value: f32, allowed| {
            if holds { Ok(()) } else { Err(SamplingError::parameter(name, value, allowed)) }
        };
        let temperature = self.temperature;
        check(
            temperature.is_finite() && temperature >= 0.0,
            "temperature",
            temperature,
            "a finite number, 0 or above",
        )?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "above 0, at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "between 0 and 1")?;
        let repetition = self.repetition_penalty;
        check(
            repetition.is_finite() && repetition > 0.0,
            "repetition_penalty",
            repetition,
            "a finite number above 0",
        )?;
        for (name, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(value.is_finite(), name, value, "a finite number")?;
        }
        self.dry.validate()?;
        self.xtc.validate()?;
        for &(_, bias) in &self.logit_bias {
            check(
                !bias.is_nan() && bias != f32::INFINITY,
                "logit_bias",
                bias,
                "a number below plus infinity",
            )?;
        }
        if let Some(count) = self.logprobs.filter(|&count| count > TOP_LOGPROBS_MAX) {
            return Err(SamplingError::parameter("top_logprobs", count, "between 0 and 20"));
        }
        Ok(())
    }

    /// Whether a draw needs the row of logits itself, whatever is known of its most likely tokens.
    pub(crate) fn needs_row(&self) -> bool {
        self.penalises()
            || self.dry.is_on()
            || self.xtc.is_on()
            || !self.logit_bias.is_empty()
            || self.logprobs.is_some()
    }

    /// Whether any penalty is on.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

fn set(config: &Value, name: &'static str, target: &mut f32) -> Result<(), SamplingError> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(()),
        Some(value) => {
            let number =
                value.as_f64().ok_or_else(|| SamplingError::parameter(name, value, "a number"))?;
            *target = number as f32;
            Ok(())
        }
    }
}
