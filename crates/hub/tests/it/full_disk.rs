//! Goal: a disk that is full in the midst of a download is an error that names a file, and the next download with room
//! goes on. Method: a file system in memory that has room for the model's bytes and for nothing else, and then more.
//! Every write of a download is filled so, and killed, by `bench/pull_faults.py`.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use hub::{Cache, Found, HubError};

use crate::pull::{assert_whole, files, name, pull, settings};
use crate::support::TestHub;

/// Bytes of a page, by which memory is counted.
const PAGE: u64 = 4096;

struct Mounted(tempfile::TempDir);

impl Mounted {
    fn mount(&self, options: &str) -> Result<(), String> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.0.path());
        let output = command.output().map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(errors) }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _not_mounted = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_disk_that_fills_in_the_midst_is_named_and_the_next_pull_goes_on() {
    let test = TestHub::start(files());
    let wanted = test.bytes() - "not wanted".len() as u64;
    let disk = Mounted(tempfile::tempdir().unwrap());
    if let Err(why) = disk.mount(&format!("size={}", wanted.next_multiple_of(PAGE))) {
        std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
        return;
    }
    // There is as much room as is missing, but the files do not end with pages, and the download is written down.
    let error = pull(settings(&test, disk.path())).unwrap_err();
    let line = error.to_string();
    assert!(matches!(error, HubError::Io { .. }), "{line}");
    assert!(line.contains(disk.path().to_str().unwrap()) && line.contains("space"), "{line}");
    assert!(matches!(Cache::new(disk.path()).find(&name()), Found::Part(_)));
    // Still full: refused by the numbers, before anything is asked for.
    let asked = test.sent();
    assert!(matches!(pull(settings(&test, disk.path())), Err(HubError::Disk { .. })));
    assert_eq!(test.sent(), asked);
    disk.mount("remount,size=1m").unwrap();
    let pulled = pull(settings(&test, disk.path())).unwrap();
    assert_whole(&test, disk.path(), &pulled);
    assert!(pulled.fetched < wanted, "what had arrived is not fetched again");
}
