//! A control group smaller than the plan: the plan shrinks to it or is refused with the numbers; the kernel never
//! has to kill. Needs the right to make a control group; without it the test says so and does nothing.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A control group of our own inside of ours.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    fn new() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let memory = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            match controllers {
                "memory" => Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path)),
                "" => Some(("/sys/fs/cgroup", "memory.max", path)),
                _ => None,
            }
        });
        let (root, limit, path) = memory.ok_or("no control group for memory")?;
        let name = format!("flashmoe-test-{}", std::process::id());
        let folder = Path::new(root).join(path.trim_start_matches('/')).join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self { folder, limit };
        // Version 2 lends a controller to a group only where its parent was told to.
        group.set(1 << 30).map_err(|error| format!("no limit can be set: {error}"))?;
        Ok(group)
    }

    fn set(&self, bytes: u64) -> std::io::Result<()> {
        fs::write(self.folder.join(self.limit), bytes.to_string())
    }

    /// Waits until the kernel has taken back what the last process held: it does so some time after its end, and what
    /// is charged until then counts against the next one.
    fn settle(&self) {
        let usage =
            if self.limit == "memory.max" { "memory.current" } else { "memory.usage_in_bytes" };
        for _ in 0..200 {
            let bytes = fs::read_to_string(self.folder.join(usage)).unwrap_or_default();
            if bytes.trim().parse::<u64>().is_ok_and(|bytes| bytes < 16 << 20) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Runs the model in the group.
    fn run(&self, options: &[&str]) -> Output {
        self.settle();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let enter = "echo $$ > \"$0\" && exec \"$@\"";
        Command::new("sh")
            .args(["-c", enter])
            .arg(self.folder.join("cgroup.procs"))
            .arg(env!("CARGO_BIN_EXE_flashmoe"))
            .arg("run")
            .arg(model)
            .args(["Name a colour.", "--max-tokens", "8", "--device", "cpu"])
            .args(options)
            .output()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn a_group_smaller_than_the_plan() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(reason) => {
            let note = format!("skipped: {reason}\n");
            std::io::stderr().write_all(note.as_bytes()).unwrap();
            return;
        }
    };
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let usual = group.run(&[]);
    assert!(usual.status.success(), "{}", errors(&usual));
    // Smaller than the least: refused, not killed.
    group.set(64 << 20).unwrap();
    let refused = group.run(&[]);
    assert_eq!(refused.status.code(), Some(4), "{}", errors(&refused));
    assert!(errors(&refused).contains("--memory "), "{}", errors(&refused));
    // Room for a small plan: it is taken, with the same answer.
    for limit in [120_u64 << 20, 160 << 20, 300 << 20] {
        group.set(limit).unwrap();
        let small = group.run(&[]);
        assert!(small.status.success(), "{limit}: {:?} {}", small.status, errors(&small));
        assert_eq!(small.stdout, usual.stdout, "{limit}");
        // More than the group has is refused, with what can be had.
        let refused = group.run(&[
            "--memory",
            "6G",
            "--storage",
            "resident",
            "--kv",
            "ahead",
            "--context",
            "4096",
        ]);
        let more = group.run(&["--memory", &(limit + (64 << 20)).to_string()]);
        for output in [refused, more] {
            let code = output.status.code();
            assert!(
                matches!(code, Some(0 | 4)),
                "{limit}: {:?} {}",
                output.status,
                errors(&output)
            );
        }
    }
}
