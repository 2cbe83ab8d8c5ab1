//! Every kernel against the scalar reference, on whatever GPU is there; lavapipe, a driver that computes on the
//! processor, is enough. `FLASHMOE_GPU_TESTS=1` makes the absence of a GPU a failure.

use gpu::{Gpu, adapters, check};

fn opened() -> Option<Gpu> {
    let found = adapters().ok().and_then(|mut found| (!found.is_empty()).then(|| found.remove(0)));
    match found {
        Some(adapter) => Some(Gpu::open(adapter).expect("an adapter that serves the kernels")),
        None if std::env::var_os("FLASHMOE_GPU_TESTS").is_some() => panic!("no Vulkan adapter"),
        None => {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"skipped: no Vulkan adapter (Debian: apt install mesa-vulkan-drivers)\n",
            );
            None
        }
    }
}

#[test]
fn kernels_are_within_their_bounds_of_the_reference_and_batches_show_in_no_bit() {
    let Some(mut gpu) = opened() else { return };
    let findings = check::run(&mut gpu, &mut |_| {}).expect("every kernel compiles and runs");
    let broken: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(broken.is_empty(), "on {}:\n{broken:#?}", gpu.adapter());
    assert!(findings.len() > 60, "{} checks", findings.len());
}
