//! The committed image belongs to the committed sources: a kernel edited without rebuilding is found here.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::Path;
use std::process::Command;

/// Each unit's list of checksums names its sources and its image, each is as it was when the image was built, and no
/// source is in none of the lists.
#[test]
fn the_images_were_built_from_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let units: Vec<String> = names(&folder.join("units"))
        .iter()
        .map(|name| name.strip_suffix(".cu").expect("units are sources").to_owned())
        .collect();
    let mut listed = vec!["all.cu".to_owned(), "layouts.cuh".to_owned()];
    for unit in &units {
        let list = folder.join(format!("prebuilt/{unit}.sha256"));
        let list =
            std::fs::read_to_string(list).expect("a list of each unit: run kernels/build.sh");
        assert!(list.contains(&format!("units/{unit}.cu")), "{unit}: run kernels/build.sh");
        listed.extend(
            list.lines().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned),
        );
        let check = Command::new("sha256sum")
            .args(["--check", "--quiet", &format!("prebuilt/{unit}.sha256")])
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
    for name in names(&folder) {
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            assert!(listed.contains(&name), "{name} is in no image: run kernels/build.sh");
        }
    }
    for name in names(&folder.join("prebuilt")) {
        let unit = name.split('.').next().unwrap();
        assert!(units.iter().any(|known| known == unit), "{name} is of no unit");
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
