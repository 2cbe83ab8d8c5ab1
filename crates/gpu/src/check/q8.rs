//! Rows in 8 bits: every word that is appended against the processor's bytes.

use kernels::{KvType, Q8_GROUP};

use super::*;
use crate::op::attention::{Cache, KeyValue, Run as Tokens, Shape};

/// Groups of values of every size, with what is hard to round and what no row can hold.
fn values(numbers: &mut Numbers, groups: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(groups * Q8_GROUP);
    for group in 0..groups {
        let size = f32::from_bits(((90 + numbers.bits() % 60) as u32) << 23);
        let mut these: Vec<f32> = (0..Q8_GROUP).map(|_| numbers.next() * size).collect();
        let scale = f32::from_bits(((103 + group as u32 % 40) << 23) | (group as u32 % 1024) << 13);
        match group % 5 {
            // Ties of bytes, and their neighbours: the greatest value gives the scale.
            0 | 1 => {
                these[0] = 127.0 * scale;
                for (at, value) in these.iter_mut().enumerate().skip(1) {
                    let tie = ((numbers.bits() % 254) as f32 - 127.0 + 0.5) * scale;
                    *value =
                        f32::from_bits(tie.to_bits().wrapping_add(at as u32 % 3).wrapping_sub(1));
                }
            }
            // Ties of scales, and their neighbours.
            2 => {
                let tie = 127.0 * f32::from_bits(scale.to_bits() + 0x1000);
                let near = tie.to_bits() + (group as u32 / 5) % 3 - 1;
                these.iter_mut().for_each(|value| *value *= tie / size * 0.5);
                these[group % Q8_GROUP] = -f32::from_bits(near);
            }
            _ => {}
        }
        values.extend(these);
    }
    let rare = [
        f32::NAN,
        f32::INFINITY,
        -f32::INFINITY,
        f32::MAX,
        127.0 * 65504.0,
        127.0 * 65519.99,
        127.0 * 65520.0,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-6,
        // Halves of the least scale, and next to them.
        127.0 * f32::from_bits(0x3300_0000),
        f32::from_bits((127.0 * f32::from_bits(0x3300_0000)).to_bits() + 1),
        0.0,
        -0.0,
    ];
    for (number, rare) in rare.into_iter().enumerate() {
        let start = 7 * number * Q8_GROUP;
        values[start..start + Q8_GROUP].fill(0.0);
        values[start + number] = rare;
    }
    values
}

/// Of heads whose rows are whole words, and of those whose rows are not.
pub(super) fn rows(gpu: &mut Gpu, dim: usize) -> Result<Finding, GpuError> {
    let (tokens, position) = (60, 3);
    let shape = Shape { query_heads: 4, key_value_heads: 4, dim };
    let mut numbers = Numbers::new(78);
    let groups = tokens * 4 * dim / Q8_GROUP;
    let (keys, values) = (values(&mut numbers, groups), values(&mut numbers, groups));
    let encoded = |values: &[f32]| -> Vec<u32> {
        let mut row = vec![0; Cache::Q8.bytes(dim)];
        let rows = values.chunks_exact(dim).flat_map(|head| {
            KvType::Q8.encode(head, &mut row);
            row.clone()
        });
        let bytes: Vec<u8> = rows.collect();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let words = 4 * Cache::Q8.bytes(dim) / 4;
    let (k, v) = (floats(gpu, &keys)?, floats(gpu, &values)?);
    let places = [0, 1].map(|_| empty(gpu, (position + tokens) * words));
    let [first, second] = places;
    let (first, second) = (first?, second?);
    let of = KeyValue { keys: &k, values: &v };
    let places = KeyValue { keys: &first, values: &second };
    attention::launch_append(
        gpu,
        Cache::Q8,
        of,
        places,
        shape,
        Tokens { first: 0, tokens, position },
    )?;
    let mut wrong = 0;
    for (held, values) in [(&first, &keys), (&second, &values)] {
        let found = gpu.read_words(held, 4 * (position * words) as u64, tokens * words)?;
        wrong += found.iter().zip(encoded(values)).filter(|(found, word)| **found != *word).count();
    }
    let name = format!("rows of 8 bits, heads of {dim}: {wrong} words are not the processor's");
    Ok(Finding { name, difference: 0.0, bound: 0.0, alone_equal: wrong == 0 })
}
