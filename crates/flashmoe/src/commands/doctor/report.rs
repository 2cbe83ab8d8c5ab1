//! `flashmoe doctor --report`: what an owner pastes into an issue, printed as it is found, so that a machine that goes
//! down in the middle has left its lines. What computes runs in processes of its own.
//!
//! `flashmoe report` says more of a model that works; this says what works.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use engine::backend::gpu::{Kind, adapters};

use super::{Findings, gpu_check};
use crate::arguments::ByteSize;
use crate::commands::report::Private;
use crate::gpu_check::{Hook, listen, own_program, reason};
use crate::plan::machine::{Memory, Swapping};
use crate::speed;

const QUESTION: &str = "What is 255 factored?";
const ANSWER_TOKENS: &str = "256";
/// How long an answer or a benchmark may take.
const RUN_LIMIT: Duration = Duration::from_secs(900);

/// Prints the report; with a model also its answers, their speed, and the speed of its disk.
///
/// # Errors
/// The report cannot be written.
pub(super) fn run(model: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let private = Private::of(model.unwrap_or(Path::new("")));
    let mut out = Filtered { out, private, line: Vec::new() };
    let out = &mut out;
    for line in gpu_check::head() {
        gpu_check::tell(out, &line)?;
    }
    let swapped = Swapping::read();
    section(out, "machine")?;
    gpu_check::tell(out, Findings::look(None)?.text().trim_end())?;
    let mut devices = vec!["cpu".to_owned()];
    match adapters() {
        Err(error) => gpu_check::tell(out, &format!("\nno GPU: {error}"))?,
        Ok(found) => {
            for adapter in found {
                section(out, &format!("kernels of GPU {adapter}"))?;
                if adapter.kind == Kind::Software && !Hook::Software.is_set() {
                    gpu_check::tell(out, "left out: it computes on the processor")?;
                    continue;
                }
                gpu_check::check_one(&adapter, out)?;
                devices.push(format!("gpu:{}", adapter.index));
            }
        }
    }
    match model {
        None => gpu_check::tell(
            out,
            "\nno model: answers, their speed and the disk's are left out (flashmoe doctor --report MODEL)",
        )?,
        Some(model) => {
            answers(model, &devices, out)?;
            for device in &devices {
                section(out, &format!("speed, --device {device}"))?;
                let name = model.to_string_lossy();
                let words =
                    ["bench", &name, "-p", "128", "-n", "32", "-r", "1", "--device", device];
                own(&words, out)?;
            }
            section(out, "disk")?;
            disk(model, out)?;
        }
    }
    if let (Some(before), Some(after)) = (swapped, Swapping::read()) {
        section(out, "memory that was moved meanwhile")?;
        let line = after.since(before).line().unwrap_or_else(|| "none".to_owned());
        gpu_check::tell(out, &line)?;
    }
    gpu_check::tell(out, "\nend of the report")
}

fn section(out: &mut dyn Write, title: &str) -> Result<()> {
    gpu_check::tell(out, &format!("\n== {title}"))
}

/// The same question on each device, greedily.
fn answers(model: &Path, devices: &[String], out: &mut dyn Write) -> Result<()> {
    let name = model.to_string_lossy();
    let mut of_processor = None;
    for device in devices {
        section(out, &format!("answer, --device {device}"))?;
        let options = ["--temperature", "0", "--max-tokens", ANSWER_TOKENS, "--stats"];
        let words = [["run", &name, QUESTION, "--device", device].as_slice(), &options].concat();
        let answer = own(&words, out)?;
        match (&of_processor, answer) {
            (None, answer) => of_processor = Some(answer),
            (Some(Some(expected)), Some(answer)) => {
                let same =
                    if *expected == answer { "the processor's answer" } else { "ANOTHER answer" };
                gpu_check::tell(out, same)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs this program and prints its lines, or why it ended. Gives what it printed where it ended well.
fn own(words: &[&str], out: &mut dyn Write) -> Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    let mut told = Ok(());
    let ended = own_program(words).and_then(|command| {
        listen(command, RUN_LIMIT, &mut |line| {
            lines.push(line.to_owned());
            if told.is_ok() {
                told = gpu_check::tell(out, line);
            }
        })
    });
    told?;
    let failed = match ended {
        Ok((status, complaint)) if status.success() => {
            if !complaint.is_empty() {
                gpu_check::tell(out, &complaint)?;
            }
            return Ok(Some(lines));
        }
        Ok((status, complaint)) => reason(status, &complaint),
        Err(reason) => reason,
    };
    gpu_check::tell(out, &format!("FAILED: {failed}"))?;
    Ok(None)
}

/// Random reads of the model's record size from its largest file, by each way that an engine could read.
fn disk(model: &Path, out: &mut dyn Write) -> Result<()> {
    let checkpoint = match crate::models::open(model) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return gpu_check::tell(out, &format!("FAILED: {error}")),
    };
    let record = checkpoint.first_record_bytes().unwrap_or(1 << 20);
    let length = checkpoint.files.iter().map(|file| file.length).max().unwrap_or(0);
    let smaller = length < Memory::read().total;
    let note = if smaller { ", less than memory: the system's cache may answer" } else { "" };
    let sizes = (ByteSize(record), ByteSize(length));
    gpu_check::tell(out, &format!("{} records, file of {}{note}", sizes.0, sizes.1))?;
    for way in speed::DISK_WAYS {
        let line = match speed::probe_way(&checkpoint, record as usize, way) {
            Ok(found) => format!("{:.2} GB/s", found / 1e9),
            Err(error) => format!("FAILED: {error}"),
        };
        gpu_check::tell(out, &format!("{way}: {line}"))?;
    }
    Ok(())
}

/// Writes lines without what is private in them.
struct Filtered<'a> {
    out: &'a mut dyn Write,
    private: Private,
    line: Vec<u8>,
}

impl Write for Filtered<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") {
                let line = self.private.text(&String::from_utf8_lossy(&self.line));
                self.line.clear();
                self.out.write_all(line.as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_what_is_private_however_they_come() {
        let mut found = Vec::new();
        let private = Private::of(Path::new("/srv/somebody/models/demo"));
        let mut out = Filtered { out: &mut found, private, line: Vec::new() };
        for piece in ["cannot read /srv/some", "body/models/demo/x.safetensors\nGB", "/s\n"] {
            out.write_all(piece.as_bytes()).unwrap();
        }
        out.flush().unwrap();
        let text = String::from_utf8(found).unwrap();
        assert!(!text.contains("somebody") && text.contains("x.safetensors"), "{text}");
        assert!(text.ends_with("GB/s\n"), "{text}");
    }
}
