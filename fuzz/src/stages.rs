//! Target of what processes of one model say to each other.

use crate::mutate;
use crate::target::Target;

pub(crate) fn message() -> Target {
    Target {
        seeds: vec![vec![0; 64]],
        mutate: |random, input| {
            mutate::bytes(random, input, &["\x00\x00\x00\x00", "\x7f\x7f\x7f\x7f"])
        },
        run: Box::new(|input| {
            engine::stages::remote::read_as_any(input);
        }),
    }
}
