//! How warm the disks are, where the system says so.
//!
//! A streamed model reads without a pause, and an SSD that grows too warm slows down without a word. Linux
//! shows the temperatures of NVMe drives, and of others by `drivetemp`, as sensors of `/sys/class/hwmon`, in
//! thousandths of a degree (the kernel's documentation, hwmon/sysfs-interface). What is not there, or is not
//! readable, is left out.

use std::fs;
use std::path::Path;

/// Where the kernel lists sensors.
pub(crate) const SENSORS: &str = "/sys/class/hwmon";
/// Drivers whose first sensor is a disk's.
const DRIVERS: [&str; 2] = ["nvme", "drivetemp"];

/// A disk's temperature.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Temperature {
    /// As the kernel calls it: `nvme0`.
    pub(crate) device: String,
    pub(crate) celsius: f64,
}

/// All disks' temperatures, by name. Asks the drives, which takes them a millisecond.
pub(crate) fn read(sensors: &Path) -> Vec<Temperature> {
    let folders = fs::read_dir(sensors).into_iter().flatten().flatten();
    let mut found: Vec<_> = folders.filter_map(|folder| of_sensor(&folder.path())).collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    found
}

fn of_sensor(folder: &Path) -> Option<Temperature> {
    let driver = fs::read_to_string(folder.join("name")).ok()?;
    if !DRIVERS.contains(&driver.trim()) {
        return None;
    }
    let text = fs::read_to_string(folder.join("temp1_input")).ok()?;
    let thousandths: i32 = text.trim().parse().ok()?;
    let device = fs::read_link(folder.join("device")).ok();
    let device = device.as_deref().and_then(Path::file_name).or(folder.file_name())?;
    let device = device.to_string_lossy().into_owned();
    Some(Temperature { device, celsius: f64::from(thousandths) / 1000.0 })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_disks_that_tell_are_listed() {
        let root = tempfile::tempdir().expect("a folder for the test");
        let sensor = |place: &str, driver: &str, reading: Option<&str>| {
            let folder = root.path().join(place);
            fs::create_dir(&folder).expect("is made");
            fs::write(folder.join("name"), driver).expect("is written");
            if let Some(reading) = reading {
                fs::write(folder.join("temp1_input"), reading).expect("is written");
            }
            folder
        };
        let first = sensor("hwmon3", "nvme\n", Some("41850\n"));
        std::os::unix::fs::symlink("../../nvme0", first.join("device")).expect("is linked");
        sensor("hwmon1", "drivetemp\n", Some("-3000\n"));
        sensor("hwmon2", "coretemp\n", Some("70000\n"));
        sensor("hwmon4", "nvme\n", None);
        sensor("hwmon5", "nvme\n", Some("hot\n"));
        let named = |device: &str, celsius| Temperature { device: device.to_owned(), celsius };
        assert_eq!(read(root.path()), [named("hwmon1", -3.0), named("nvme0", 41.85)]);
        assert_eq!(read(&root.path().join("missing")), []);
    }
}
