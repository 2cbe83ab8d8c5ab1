//! Every kernel against the scalar reference, on a GPU that is there, with `FLASHMOE_GPU_TESTS=1` on lavapipe too, a
//! driver that computes on the processor; without either that is a failure.

#[path = "../../../tests/long.rs"]
mod long;

use gpu::{Adapter, DriverOptions, Kind, Wait, adapters, check};

fn adapter() -> Option<Adapter> {
    long::tested(adapters().unwrap_or_default(), |it| it.kind == Kind::Software)
}

/// Checks these groups: each of the two tests below has about half of the time, and they run next to each other.
fn check_groups(is_meant: impl Fn(&str) -> bool) {
    let Some(adapter) = adapter() else { return };
    for name in check::groups().filter(|name| is_meant(name)) {
        let findings = check::run_group(&adapter, name, &mut |_| {});
        let findings = findings.expect("every kernel compiles and runs");
        let broken: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
        assert!(broken.is_empty() && !findings.is_empty(), "{name} on {adapter}:\n{broken:#?}");
    }
}

const LONGEST: [&str; 2] = ["packings", "tiles"];

#[test]
fn kernels_are_within_their_bounds_of_the_reference_and_batches_show_in_no_bit() {
    check_groups(|name| !LONGEST.contains(&name));
}

#[test]
fn products_of_all_packings_are_within_their_bounds_and_batches_show_in_no_bit() {
    check_groups(|name| LONGEST.contains(&name));
}

#[test]
fn the_short_form_has_a_kernel_of_each_kind_and_groups_have_names() {
    let Some(adapter) = adapter() else { return };
    let mut told = 0;
    let findings = check::run_group(&adapter, check::SHORT, &mut |_| told += 1);
    let findings = findings.expect("every kernel compiles and runs");
    assert!(findings.iter().all(check::Finding::holds), "on {adapter}:\n{findings:#?}");
    // A slow machine begins fewer.
    assert!(told == findings.len() && told >= 2, "{told}");
    let pairs = check::run_group(&adapter, "pairs", &mut |_| {}).expect("they are sorted");
    assert!(pairs.iter().all(check::Finding::holds) && !pairs.is_empty());
    assert!(check::groups().any(|name| name == "options") && check::groups().count() == 16);
    let unknown = check::run_group(&adapter, "paris", &mut |_| {}).expect_err("no such group");
    assert!(unknown.to_string().contains("paris"), "{unknown}");
}

#[test]
fn ways_beside_wgpu_give_its_bits_and_those_of_other_systems_are_refused_by_name() {
    let Some(adapter) = adapter() else { return };
    let findings = check::run_driver_options(&adapter, &mut |_| {}).expect("every way runs");
    let broken: Vec<_> = findings.iter().filter(|finding| !finding.holds()).collect();
    assert!(broken.is_empty(), "on {adapter}:\n{broken:#?}");
    let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
    assert!(names.contains(&"--gpu-wait spin"), "{names:?}");
    assert_eq!(adapter.host_alignment.is_some(), names.contains(&"--gpu-import on"), "{names:?}");
    if adapter.api != "vulkan" {
        return;
    }
    for (options, words) in [
        (
            DriverOptions { residency: true, ..DriverOptions::default() },
            ["--gpu-residency on", "residency sets"],
        ),
        (
            DriverOptions { wait: Wait::Event, ..DriverOptions::default() },
            ["--gpu-wait event", "shared events"],
        ),
    ] {
        let refused = adapter.clone().with(options).expect_err("Metal's alone").to_string();
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
}
