//! Little-endian bit streams: the packing of affine encodings, and its scalar reference.

/// Unpacks `out.len()` values of `bits` bits each from a little-endian bit stream, starting with
/// the value at index `first`. The scalar reference of every unpacking kernel.
///
/// # Panics
///
/// If the stream is shorter than asked for.
pub fn unpack(stream: &[u8], bits: u8, first: usize, out: &mut [u8]) {
    let mask = ((1u16 << bits) - 1) as u8;
    for (i, value) in out.iter_mut().enumerate() {
        let bit = (first + i) * usize::from(bits);
        let (byte, shift) = (bit / 8, bit % 8);
        let low = u16::from(stream[byte]);
        let straddles = shift + usize::from(bits) > 8;
        let high = if straddles { u16::from(stream[byte + 1]) } else { 0 };
        *value = ((low | high << 8) >> shift) as u8 & mask;
    }
}

/// Packs values below `2^bits` into a little-endian bit stream of `values.len() * bits / 8` bytes.
///
/// # Panics
///
/// If `out` has another length.
pub fn pack(values: &[u8], bits: u8, out: &mut [u8]) {
    assert_eq!(out.len() * 8, values.len() * usize::from(bits), "length of the packed stream");
    out.fill(0);
    for (i, &value) in values.iter().enumerate() {
        let bit = i * usize::from(bits);
        let (byte, shift) = (bit / 8, bit % 8);
        let spread = u16::from(value) << shift;
        out[byte] |= spread as u8;
        if spread > 0xff {
            out[byte + 1] |= (spread >> 8) as u8;
        }
    }
}
