//! The example `check` as a test: `cargo test -p flashmoe-cuda --test device -- --ignored` on a machine with a GPU.

#[path = "../examples/check.rs"]
mod check;

/// Fused kernels against plain ones, steps of several sequences against each alone.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn kernels_agree() {
    check::run(1);
}
