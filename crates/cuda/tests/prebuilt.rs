//! The committed image belongs to the committed sources: a kernel edited without rebuilding is found here.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::Path;
use std::process::Command;

/// The list of checksums beside the image names every source, and each is as it was when the image was built.
#[test]
fn the_image_was_built_from_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let list = std::fs::read_to_string(folder.join("prebuilt/sources.sha256")).unwrap();
    let listed: Vec<&str> =
        list.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            assert!(
                listed.contains(&name.as_str()),
                "{name} is newer than the image: run kernels/build.sh"
            );
        }
    }
    let check = Command::new("sha256sum")
        .args(["--check", "--quiet", "prebuilt/sources.sha256"])
        .current_dir(&folder)
        .output();
    match check {
        Err(error) => eprintln!("skipped: sha256sum cannot be run here ({error})"),
        Ok(output) => {
            let found = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{found}run kernels/build.sh");
        }
    }
}

/// Without a driver every way in says so instead of failing later.
#[test]
fn a_device_opens_or_says_what_is_missing() {
    match cuda::Device::open(0) {
        Ok(device) => assert!(device.info().total_bytes > 0 && !device.info().name.is_empty()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("driver") || text.contains("CUDA device"), "{text}");
        }
    }
    let far = cuda::Device::open(usize::MAX).err().expect("no machine has that many devices");
    assert!(matches!(far, cuda::CudaError::NoDriver | cuda::CudaError::NoDevice { .. }), "{far}");
}
