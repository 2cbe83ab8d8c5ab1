//! How much a test tries. By itself, as the README's command has it, a part of its cases with each kind of them;
//! `FLASHMOE_LONG_TESTS=1`, which `.ci/run` sets, has it try all. `FLASHMOE_CAMPAIGN=1` adds, by hand, what would take
//! longer than all other tests together.
#![allow(dead_code, reason = "each test binary uses a part of it")]

/// Whether all cases are tried.
pub(crate) fn is_long() -> bool {
    std::env::var_os("FLASHMOE_LONG_TESTS").is_some() || is_campaign()
}

/// Whether everything is tried that a test knows.
pub(crate) fn is_campaign() -> bool {
    std::env::var_os("FLASHMOE_CAMPAIGN").is_some()
}

/// Whether tests of any GPU run on every driver, one that computes on the processor among them, and fail without one:
/// `FLASHMOE_GPU_TESTS=1`, which `.ci/run` sets. By default they need a card: a processor takes two minutes for them.
pub(crate) fn asks_for_gpu() -> bool {
    std::env::var_os("FLASHMOE_GPU_TESTS").is_some()
}

/// Whether a test of any GPU that needs to be asked for does nothing, which it says then.
pub(crate) fn skips_gpu() -> bool {
    if asks_for_gpu() {
        return false;
    }
    let said =
        b"skipped: FLASHMOE_GPU_TESTS=1 has it run (Debian: apt install mesa-vulkan-drivers)\n";
    std::io::Write::write_all(&mut std::io::stderr(), said).expect("the standard error output");
    true
}

/// The first of the adapters, where tests of any GPU run on it: a card, or any that is asked for.
///
/// # Panics
/// When one is asked for and there is none.
pub(crate) fn tested<A>(found: Vec<A>, is_software: impl Fn(&A) -> bool) -> Option<A> {
    let first = found.into_iter().next();
    match first.filter(|adapter| asks_for_gpu() || !is_software(adapter)) {
        None => {
            assert!(skips_gpu(), "no Vulkan adapter");
            None
        }
        adapter => adapter,
    }
}

/// All cases, or by default every `step`-th, beginning with the first.
pub(crate) fn part<T>(cases: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    part_from(0, cases, step)
}

/// All cases, or by default every `step`-th from another beginning for each `number`.
pub(crate) fn part_from<T>(
    number: usize,
    cases: impl IntoIterator<Item = T>,
    step: usize,
) -> impl Iterator<Item = T> {
    let (first, step) = if is_long() { (0, 1) } else { (number % step, step) };
    cases.into_iter().skip(first).step_by(step)
}
