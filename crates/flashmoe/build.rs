//! Tells the program its commit, for `flashmoe --version`.
//!
//! Only where it is asked for (FLASHMOE_COMMIT) or the build is a release: a development build would otherwise be
//! compiled again after every commit.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=FLASHMOE_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = std::env::var("FLASHMOE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| {
        if !release {
            return None;
        }
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo:rerun-if-changed={log}");
        }
        git(&["rev-parse", "--short=10", "HEAD"])
    });
    let commit = commit.unwrap_or_else(|| "development".to_owned());
    println!("cargo:rustc-env=FLASHMOE_COMMIT={commit}");
}
