//! Decodes a matrix for comparison with another implementation (tests/reference/published_values.py).
//!
//! `decode_matrix ENCODING ROWS COLUMNS` reads weights, scales and biases, as far as the encoding has them, from
//! standard input and writes the values to standard output as little-endian binary32.

use kernels::format::{Encoding, Matrix, decode_row};
use std::error::Error;
use std::io::{Read, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("three arguments are needed");
    let encoding = Encoding::parse(&next()?).ok_or("no encoding of this name")?;
    let (rows, columns) = (next()?.parse()?, next()?.parse()?);
    let mut bytes = Vec::new();
    stdin().lock().read_to_end(&mut bytes)?;
    let [weight, scales, _] = encoding.plane_bytes(rows, columns);
    let (weight, rest) = bytes.split_at_checked(weight).ok_or("weights are missing")?;
    let (scales, biases) = rest.split_at_checked(scales).ok_or("scales are missing")?;
    let matrix = Matrix::new(encoding, rows, columns, weight, scales, biases)?;
    let mut values = vec![0.0; columns];
    let mut out = stdout().lock();
    for row in 0..rows {
        decode_row(&matrix, row, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}
