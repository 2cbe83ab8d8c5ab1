//! What a hop between two processes takes: messages of one size go there and back; prints half of the median and of the
//! 95th percentile of the way there and back.
//!
//!     hop listen ADDRESS [IDENTITY TRUSTED]
//!     hop ADDRESS BYTES COUNT [IDENTITY TRUSTED]

use std::error::Error;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wire::{Credentials, Identity, Listener, Trusted, connect};

fn credentials(folders: &[String]) -> Result<Option<Credentials>, Box<dyn Error>> {
    let [identity, trusted] = folders else { return Ok(None) };
    let identity = Identity::at(identity);
    if !identity.exists() {
        identity.make()?;
    }
    let trusted = Trusted { files: vec![PathBuf::from(trusted).join("certificate.pem")] };
    Ok(Some(Credentials::read(&identity, &trusted)?))
}

#[allow(clippy::print_stdout, reason = "its figures")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [listen, address, rest @ ..] if listen == "listen" => {
            let listener = Listener::bind(address, credentials(rest)?)?;
            let (stream, from) = listener.accept()?;
            let mut connection = listener.secure(stream, from)?;
            let mut header = [0; 4];
            while connection.reader.read_exact(&mut header).is_ok() {
                let mut bytes = vec![0; u32::from_le_bytes(header) as usize];
                connection.reader.read_exact(&mut bytes)?;
                connection.writer.write_all(&[&header[..], &bytes].concat())?;
            }
        }
        [address, bytes, count, rest @ ..] => {
            let mut connection =
                connect(address, credentials(rest)?.as_ref(), Duration::from_secs(10))?;
            let size: u32 = bytes.parse()?;
            let message = [&size.to_le_bytes()[..], &vec![7; size as usize]].concat();
            let (mut back, mut times) = (vec![0; message.len()], Vec::new());
            for _ in 0..count.parse::<usize>()? {
                let begun = Instant::now();
                connection.writer.write_all(&message)?;
                connection.reader.read_exact(&mut back)?;
                times.push(begun.elapsed() / 2);
            }
            times.sort_unstable();
            let micros = |at: usize| times[at * (times.len() - 1) / 100].as_secs_f64() * 1e6;
            println!(
                "{size} bytes: {:.1} us a hop (median), {:.1} us (95 %)",
                micros(50),
                micros(95)
            );
        }
        _ => return Err(
            "hop listen ADDRESS [IDENTITY TRUSTED], or hop ADDRESS BYTES COUNT [IDENTITY TRUSTED]"
                .into(),
        ),
    }
    Ok(())
}
