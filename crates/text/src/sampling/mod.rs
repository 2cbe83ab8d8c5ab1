//! Sampling: one row of logits to one token.
//!
//! The order of the steps is transformers' (temperature before the truncations), with OpenAI's penalties
//! and bias in front: repetition, frequency and presence penalties, DRY, logit bias, mask of a constraint,
//! temperature, top-k, top-p, min-p, XTC, draw. Log-probabilities are the model's own, from before all of it.
//! Each truncation sees the distribution renormalised by the one before.
//!
//! **The same options, seed and logits give the same token on every platform.** All arithmetic is f32 addition,
//! multiplication and division in a fixed order, with our own exponential (`math.rs`); probabilities are integers
//! (fixed point, 2^40 is the most likely token), so that sums do not depend on order; the generator is written out
//! (`random.rs`). Equal logits go to the lower id, everywhere.
//!
//! Nothing is allocated after the first token; a greedy token is one pass over the logits, top-k one more.

mod dry;
mod error;
mod mask;
mod math;
mod options;
mod random;
mod ranked;
mod sampler;
mod select;
mod xtc;

pub use dry::{DryOptions, REPEATED_TOKENS_MAX, SEQUENCE_BREAKER_BYTES_MAX, SEQUENCE_BREAKERS_MAX};
pub use error::SamplingError;
pub use mask::Mask;
pub use options::{SamplingOptions, TOP_LOGPROBS_MAX};
pub use random::Xoshiro256;
pub use ranked::{RANKED_TOKENS, Ranked, SUM_TOKENS, Wanted};
pub use sampler::{Sampled, Sampler, TokenLogprob};
pub use xtc::XtcOptions;
