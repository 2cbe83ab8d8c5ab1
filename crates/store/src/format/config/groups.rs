//! Keys that belong together.

use super::key::AnyKey;
use super::keys::{
    EXPERTS_PER_TOKEN, INNER_ROPE_THETA, INNER_ROTARY_FACTOR, N_ROUTED_EXPERTS, NUM_EXPERTS,
    NUM_EXPERTS_PER_TOK, NUM_EXPERTS_PER_TOKEN, NUM_LOCAL_EXPERTS, PLE_CONV_KERNEL,
    PLE_CONV_KERNEL_SIZE, ROPE_ATTENTION_FACTOR, ROPE_BETA_FAST, ROPE_BETA_SLOW, ROPE_FACTOR,
    ROPE_KIND, ROPE_MSCALE, ROPE_MSCALE_ALL, ROPE_ORIGINAL, ROPE_THETA, ROPE_TRUNCATE, ROPE_TYPE,
    ROTARY_FACTOR,
};

/// Keys of one meaning: where a file has both, they have one value.
pub fn twins() -> Vec<[Box<dyn AnyKey>; 2]> {
    vec![
        [Box::new(ROPE_TYPE), Box::new(ROPE_KIND)],
        [Box::new(NUM_EXPERTS_PER_TOK), Box::new(EXPERTS_PER_TOKEN)],
        [Box::new(NUM_EXPERTS_PER_TOK), Box::new(NUM_EXPERTS_PER_TOKEN)],
        [Box::new(INNER_ROPE_THETA), Box::new(ROPE_THETA)],
        [Box::new(INNER_ROTARY_FACTOR), Box::new(ROTARY_FACTOR)],
        [Box::new(NUM_EXPERTS), Box::new(NUM_LOCAL_EXPERTS)],
        [Box::new(NUM_EXPERTS), Box::new(N_ROUTED_EXPERTS)],
        [Box::new(NUM_LOCAL_EXPERTS), Box::new(N_ROUTED_EXPERTS)],
        [Box::new(PLE_CONV_KERNEL_SIZE), Box::new(PLE_CONV_KERNEL)],
    ]
}

/// Keys of `rope_parameters` and `rope_scaling` that mean nothing unless the rotation is stretched.
pub(super) fn stretching() -> Vec<Box<dyn AnyKey>> {
    vec![
        Box::new(ROPE_FACTOR),
        Box::new(ROPE_ORIGINAL),
        Box::new(ROPE_BETA_FAST),
        Box::new(ROPE_BETA_SLOW),
        Box::new(ROPE_TRUNCATE),
        Box::new(ROPE_ATTENTION_FACTOR),
        Box::new(ROPE_MSCALE),
        Box::new(ROPE_MSCALE_ALL),
    ]
}
