//! Decodes blocks for comparison with another implementation (tests/reference/block_values.py).
//!
//! `decode_blocks FORMAT` reads blocks from standard input and writes their values to standard output as
//! little-endian binary32; without an argument it lists the formats: name, GGUF number, values, bytes.

use kernels::format::BlockFormat;
use std::error::Error;
use std::io::{Read, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    let Some(name) = std::env::args().nth(1) else {
        for format in BlockFormat::ALL {
            let (name, type_id) = (format.name(), format.type_id());
            writeln!(out, "{name} {type_id} {} {}", format.values(), format.bytes())?;
        }
        return Ok(());
    };
    let format = BlockFormat::parse(&name).ok_or("no block format of this name")?;
    let mut blocks = Vec::new();
    stdin().lock().read_to_end(&mut blocks)?;
    let mut values = vec![0.0; format.values()];
    let mut bytes = Vec::with_capacity(4 * format.values());
    for block in blocks.chunks(format.bytes()) {
        format.decode(block, &mut values);
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}
