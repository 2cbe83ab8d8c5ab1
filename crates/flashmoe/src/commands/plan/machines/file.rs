//! The file of `plan --machines`: what each machine has, and how the first one reaches it.
//!
//! ```toml
//! identity = "first"              # as in the file of --stages; without it loopback only
//!
//! [[machine]]                     # the first process: the embedding and the first layers
//! name = "first"
//! has = "ram=48G,disk=7,memory=60"
//!
//! [[machine]]
//! name = "second"
//! has = "ram=32G,disk=3.5,memory=40"
//! budget = "20G"                  # what --memory gives its process; else what plan takes of its RAM
//! address = "10.0.0.2:7777"
//! certificate = "second.pem"
//! link = 1.0                      # Gb/s between it and the first
//! latency = 0.2                   # ms one way
//! ```

use std::path::Path;

use serde::Deserialize;

use crate::arguments::{AssumedMachine, memory_size};

/// Most machines.
const MACHINES_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    identity: Option<String>,
    #[serde(default)]
    machine: Vec<WrittenMachine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMachine {
    name: String,
    has: String,
    budget: Option<String>,
    address: Option<String>,
    certificate: Option<String>,
    link: Option<f64>,
    latency: Option<f64>,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machines {
    pub(super) identity: Option<String>,
    /// The first process's first.
    pub(super) all: Vec<Machine>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) has: AssumedMachine,
    /// Bytes of the process, where they are not a share of the RAM.
    pub(super) budget: Option<u64>,
    /// How the first process reaches it; none of the first itself.
    pub(super) way: Option<Way>,
}

/// Between the first process and another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) address: String,
    pub(super) certificate: Option<String>,
    /// Bytes a second, each way.
    pub(super) rate: f64,
    /// Seconds one way.
    pub(super) latency: f64,
}

impl Machines {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let written: Written =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let Written { identity, machine } = written;
        if machine.is_empty() || machine.len() > MACHINES_MAX {
            return Err(format!("{} machines; 1 to {MACHINES_MAX} are taken", machine.len()));
        }
        let one = |(index, machine)| Machine::of(machine, index == 0, identity.is_some());
        let all = machine.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        let gpus = all.iter().filter(|machine| machine.has.gpu.is_some()).count();
        if gpus != 0 && gpus != all.len() {
            let found = "some machines have a GPU (vram, bus) and others none";
            return Err(format!(
                "{found}: all processes compute on GPUs of one kind, or none does"
            ));
        }
        Ok(Self { identity, all })
    }

    /// As [`Machines::parse`], from a file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        use crate::failure::Failure;
        use anyhow::Context;
        use store::io::platform::{Links, read_regular};
        let shown = || format!("--machines {}", store::shown::path(path));
        let bytes = read_regular(path, Links::Followed, 1 << 20);
        let bytes = bytes.map_err(Failure::io).with_context(shown)?;
        let refuse = |found: String| Failure::usage(format!("{}: {found}", shown()));
        let text = String::from_utf8(bytes).map_err(|error| refuse(error.to_string()))?;
        Ok(Self::parse(&text).map_err(refuse)?)
    }
}

impl Machine {
    fn of(written: WrittenMachine, is_first: bool, has_identity: bool) -> Result<Self, String> {
        let WrittenMachine { name, has, budget, address, certificate, link, latency } = written;
        let wrong = |found: String| format!("machine {}: {found}", store::shown::quoted(&name));
        let has = has.parse::<AssumedMachine>().map_err(|error| wrong(format!("has: {error}")))?;
        let budget = budget.map(|text| memory_size(&text).map(|size| size.0)).transpose();
        let budget = budget.map_err(|error| wrong(format!("budget: {error}")))?;
        let way = match (is_first, address, link, latency) {
            (true, None, None, None) if certificate.is_none() => None,
            (true, ..) => {
                let found = "the first machine is not reached: it has no address, link, latency";
                return Err(wrong(found.to_owned()));
            }
            (false, Some(address), Some(link), Some(latency)) => {
                if !(1e-3..1e5).contains(&link) || !(0.0..1e4).contains(&latency) {
                    let found = format!("link = {link} Gb/s, latency = {latency} ms");
                    return Err(wrong(format!("{found}: more than 0.001, less than 10000")));
                }
                if certificate.is_some() != has_identity {
                    let found = "an identity and a certificate for each machine, or neither";
                    return Err(wrong(found.to_owned()));
                }
                Some(Way { address, certificate, rate: link * 1e9 / 8.0, latency: latency / 1e3 })
            }
            (false, ..) => {
                return Err(wrong("it needs address, link (Gb/s) and latency (ms)".to_owned()));
            }
        };
        Ok(Self { name, has, budget, way })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_whole_or_refused_by_name() {
        let first = "[[machine]]\nname = \"a\"\nhas = \"ram=8G,disk=2,memory=20\"\n";
        let found = Machines::parse(first).unwrap();
        assert_eq!((found.all.len(), &found.all[0].way), (1, &None));
        let way = "address = \"b:1\"\nlink = 1\nlatency = 0.2\n";
        let second = first.replace("\"a\"", "\"b\"");
        let both = Machines::parse(&format!("{first}{second}budget = \"3G\"\n{way}")).unwrap();
        let Some(Way { rate, latency, .. }) = both.all[1].way.clone() else { panic!("{both:?}") };
        assert_eq!((rate, latency, both.all[1].budget), (125e6, 0.2e-3, Some(3 << 30)));
        let gpu = second.replace("memory=20", "memory=900,vram=24G,bus=25");
        for (text, words) in [
            (String::new(), "0 machines"),
            (format!("{first}{way}"), "\"a\""),
            (format!("{first}{second}"), "latency"),
            (format!("{first}{second}{}", way.replace("0.2", "-1")), "latency"),
            (format!("{first}{gpu}{way}"), "GPU"),
            (first.replace("disk=2,", ""), "disk="),
            (format!("identity = \"x\"\n{first}{second}{way}"), "certificate"),
            (format!("{first}cores = 2\n"), "cores"),
        ] {
            let said = Machines::parse(&text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
