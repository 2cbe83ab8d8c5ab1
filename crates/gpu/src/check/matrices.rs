//! Products, rows of tables and experts, of every packing.

use super::*;
use crate::op::halves::{self, Halves};
use crate::op::{group, tile};

/// Tokens of a check: more than a tile and no multiple of it.
const TOKENS: usize = 11;

/// A matrix of random contents, held as a checkpoint would.
pub(super) struct Held {
    encoding: Encoding,
    rows: usize,
    columns: usize,
    planes: [Vec<u8>; 3],
}

impl Held {
    pub(super) fn random(
        encoding: Encoding,
        rows: usize,
        columns: usize,
        numbers: &mut Numbers,
    ) -> Self {
        let [weights, scales, biases] = encoding.plane_bytes(rows, columns);
        let planes = match encoding {
            Encoding::Affine { scale, .. } => {
                let values = |count: usize, numbers: &mut Numbers, size: f32| {
                    let values = numbers.floats(count / scale.bytes());
                    encode(scale, &values.iter().map(|value| value * size).collect::<Vec<_>>())
                };
                let bytes = numbers.bytes(weights);
                [bytes, values(scales, numbers, 0.01), values(biases, numbers, 0.1)]
            }
            Encoding::Float(float) => {
                [encode(float, &numbers.floats(rows * columns)), Vec::new(), Vec::new()]
            }
            Encoding::Block(format) => {
                [plausible(format, weights, numbers), Vec::new(), Vec::new()]
            }
            Encoding::Mxfp4 => {
                let scales = near_one(scales, numbers);
                [numbers.bytes(weights), scales, Vec::new()]
            }
            Encoding::Symmetric { scale, .. } | Encoding::Zeroed { scale, .. } => {
                let values = numbers.scales(scales / scale.bytes());
                [numbers.bytes(weights), encode(scale, &values), numbers.bytes(biases)]
            }
            Encoding::Fp8 { scale } => {
                let scales = match scale {
                    ScaleType::Float(float) => {
                        encode(float, &numbers.scales(scales / float.bytes()))
                    }
                    ScaleType::E8m0 => near_one(scales, numbers),
                };
                [floats_of_8(weights, numbers), scales, Vec::new()]
            }
            Encoding::Fp8Rows { scale, .. } => {
                let values = numbers.scales(scales / scale.bytes());
                [floats_of_8(weights, numbers), encode(scale, &values), Vec::new()]
            }
            Encoding::Nvfp4 { global } => {
                let number = if global == GlobalScale::Multiplies { 0.003 } else { 300.0 };
                let number = encode(FloatType::F32, &[number]);
                [numbers.bytes(weights), floats_of_8(scales, numbers), number]
            }
        };
        Self { encoding, rows, columns, planes }
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        let [weight, scales, biases] = &self.planes;
        Matrix::new(self.encoding, self.rows, self.columns, weight, scales, biases)
            .expect("planes of the encoding's sizes")
    }

    /// Weights, scales and biases.
    pub(super) fn planes(&self) -> [&[u8]; 3] {
        self.planes.each_ref().map(Vec::as_slice)
    }

    /// `W x` in double precision, for each row of `x`.
    pub(super) fn product(&self, x: &[f32]) -> Vec<f32> {
        let (matrix, mut row) = (self.matrix(), vec![0.0; self.columns]);
        let tokens = x.len() / self.columns;
        let mut out = vec![0.0; tokens * self.rows];
        for index in 0..self.rows {
            decode_row(&matrix, index, &mut row);
            for (token, x) in x.chunks_exact(self.columns).enumerate() {
                let terms = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                out[token * self.rows + index] = terms.sum::<f64>() as f32;
            }
        }
        out
    }
}

/// Powers of two near one, as bytes.
fn near_one(count: usize, numbers: &mut Numbers) -> Vec<u8> {
    numbers.bytes(count).into_iter().map(|byte| 120 + byte % 8).collect()
}

/// 8-bit floats that are numbers.
fn floats_of_8(count: usize, numbers: &mut Numbers) -> Vec<u8> {
    let is_number = |byte: u8| byte & 0x7f != 0x7f;
    numbers.bytes(count).into_iter().map(|byte| if is_number(byte) { byte } else { 0 }).collect()
}

/// Random blocks whose values are of a magnitude near 1.
fn plausible(format: BlockFormat, bytes: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut values = vec![0.0f32; format.values()];
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let block = numbers.bytes(format.bytes());
        format.decode(&block, &mut values);
        let square = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        if (0.01..16.0).contains(&square) {
            all.extend(block);
        }
    }
    all
}

fn encode(float: FloatType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &value in values {
        match float {
            FloatType::F32 => bytes.extend(value.to_le_bytes()),
            FloatType::F16 => bytes.extend(f16_from_f32(value).to_le_bytes()),
            FloatType::Bf16 => bytes.extend(bf16_from_f32(value).to_le_bytes()),
        }
    }
    bytes
}

/// Every encoding that the kernels read.
pub(super) fn encodings() -> Vec<Encoding> {
    let mut all: Vec<_> =
        [FloatType::F32, FloatType::F16, FloatType::Bf16].map(Encoding::Float).into();
    for bits in [2, 3, 4, 5, 6, 8] {
        all.extend([32, 64, 128].map(|group| Encoding::Affine {
            bits,
            group,
            scale: FloatType::Bf16,
        }));
    }
    all.extend([FloatType::F16, FloatType::F32].map(|scale| Encoding::Affine {
        bits: 4,
        group: 64,
        scale,
    }));
    all.extend(BlockFormat::ALL.iter().copied().map(Encoding::Block));
    all.push(Encoding::Mxfp4);
    all.extend(integers());
    all.extend(fp8());
    all.extend(nvfp4());
    all
}

/// One encoding of each place that scales have and of each third plane that is not of biases, for checks of kernels
/// that have the loop of a product.
pub(super) const OTHER_PLACES: [Encoding; 3] = [
    Encoding::Zeroed { bits: 4, group: 32, scale: FloatType::Bf16 },
    Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) },
    Encoding::Nvfp4 { global: GlobalScale::Divides },
];

/// Both ways in which a matrix's number meets its scales.
pub(super) fn nvfp4() -> [Encoding; 2] {
    [GlobalScale::Multiplies, GlobalScale::Divides].map(|global| Encoding::Nvfp4 { global })
}

/// Of 8-bit floats each way to share a scale, and each type of scale.
pub(super) fn fp8() -> [Encoding; 4] {
    [
        Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) },
        Encoding::Fp8 { scale: ScaleType::E8m0 },
        Encoding::Fp8Rows { scale: FloatType::Bf16, shared: false },
        Encoding::Fp8Rows { scale: FloatType::F16, shared: true },
    ]
}

/// Of integers in groups each number of bits, group and type of scale, with zero points and without.
pub(super) fn integers() -> [Encoding; 6] {
    use FloatType::{Bf16, F16, F32};
    let symmetric = |bits, group, scale| Encoding::Symmetric { bits, group, scale };
    let zeroed = |bits, group, scale| Encoding::Zeroed { bits, group, scale };
    [
        symmetric(4, 32, Bf16),
        symmetric(4, 128, F32),
        symmetric(8, 64, F16),
        zeroed(4, 32, Bf16),
        zeroed(4, 64, F32),
        zeroed(8, 128, F16),
    ]
}

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let wide = [BlockFormat::Q4K, BlockFormat::Q5K].map(Encoding::Block);
    for encoding in
        [encodings()[0], Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 }]
            .into_iter()
            .chain(wide)
    {
        add(products(gpu, encoding, 2304)?);
    }
    // Rows of gpt-oss: scales of a row begin at any byte, and the last round of units is not full.
    for encoding in [Encoding::Mxfp4, Encoding::Float(FloatType::Bf16)] {
        add(products(gpu, encoding, 2880)?);
    }
    for encoding in encodings() {
        add(products(gpu, encoding, 768)?);
        add(embeddings(gpu, encoding)?);
    }
    let scale = FloatType::Bf16;
    for (bits, group) in [(4, 64), (3, 32), (6, 128), (8, 64)] {
        routed(gpu, Encoding::Affine { bits, group, scale }, add)?;
    }
    routed(gpu, Encoding::Float(FloatType::Bf16), add)?;
    routed(gpu, Encoding::Mxfp4, add)?;
    // Others differ in scales alone, which products and tables show.
    for encoding in [integers()[0], fp8()[1], fp8()[3]].into_iter().chain(OTHER_PLACES) {
        routed(gpu, encoding, add)?;
    }
    // Tiles at the lower and right edges are partial.
    add(products(gpu, fp8()[0], 1300)?);
    add(codes(gpu)?);
    for &format in BlockFormat::ALL {
        routed(gpu, Encoding::Block(format), add)?;
    }
    Ok(())
}

/// What most checkpoints are packed in.
const USUAL: Encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };

/// Products of it.
pub(super) fn short_products(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(products(gpu, USUAL, 768)?);
    Ok(())
}

/// Experts of it.
pub(super) fn short_experts(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    routed(gpu, USUAL, add)
}

/// Other packings, and rows of a table.
pub(super) fn short_packings(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    add(embeddings(gpu, USUAL)?);
    for encoding in [Encoding::Block(BlockFormat::Q4K), Encoding::Float(FloatType::Bf16)] {
        add(products(gpu, encoding, 768)?);
    }
    Ok(())
}

/// Odd rows, columns that are no power of two.
fn products(gpu: &mut Gpu, encoding: Encoding, columns: usize) -> Result<Finding, GpuError> {
    let rows = 37;
    let mut numbers = Numbers::new(1);
    let held = Held::random(encoding, rows, columns, &mut numbers);
    let x = numbers.floats(TOKENS * columns);
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let matrix = trunk.matrix(0);
    let (input, out) = (floats(gpu, &x)?, empty(gpu, TOKENS * rows)?);
    product::launch(gpu, matrix, &input, &out, TOKENS, false)?;
    let found = gpu.read_floats(&out, 0, TOKENS * rows)?;
    let mut alone_equal = true;
    for token in 0..TOKENS {
        let one = floats(gpu, &x[token * columns..(token + 1) * columns])?;
        product::launch(gpu, matrix, &one, &out, 1, false)?;
        let alone = gpu.read_floats(&out, 0, rows)?;
        alone_equal &= alone == found[token * rows..(token + 1) * rows];
    }
    if matches!(encoding, Encoding::Affine { bits: 4, .. }) {
        // Adding to what is there doubles it.
        let one = floats(gpu, &x[..columns])?;
        product::launch(gpu, matrix, &one, &out, 1, false)?;
        product::launch(gpu, matrix, &one, &out, 1, true)?;
        let twice = gpu.read_floats(&out, 0, rows)?;
        alone_equal &= twice.iter().zip(&found).all(|(twice, once)| *twice == 2.0 * once);
    }
    let name = format!("product {}, rows of {columns}", encoding.name());
    let difference = difference(&found, &held.product(&x));
    Ok(Finding { name, difference, bound: 1e-5, alone_equal })
}

fn embeddings(gpu: &mut Gpu, encoding: Encoding) -> Result<Finding, GpuError> {
    let (rows, columns) = (9, 256);
    let held = Held::random(encoding, rows, columns, &mut Numbers::new(2));
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let tokens = [8u32, 0, 3];
    let mut expected = vec![0.0; tokens.len() * columns];
    for (row, &token) in expected.chunks_exact_mut(columns).zip(&tokens) {
        decode_row(&held.matrix(), token as usize, row);
    }
    let (ids, out) = (words(gpu, &tokens)?, empty(gpu, tokens.len() * columns)?);
    embedding::launch(gpu, trunk.matrix(0), &ids, &out, tokens.len())?;
    let found = gpu.read_floats(&out, 0, tokens.len() * columns)?;
    let name = format!("embedding {}", encoding.name());
    Ok(Finding { name, difference: difference(&found, &expected), bound: 1e-6, alone_equal: true })
}

/// Every 8-bit float, to the bit; that which is no number is none.
fn codes(gpu: &mut Gpu) -> Result<Finding, GpuError> {
    let encoding = Encoding::Fp8Rows { scale: FloatType::F32, shared: true };
    let (columns, scale) = (256, encode(FloatType::F32, &[1.0]));
    let planes = [(0..=255).collect(), scale, Vec::new()];
    let held = Held { encoding, rows: 1, columns, planes };
    let mut trunk = Trunk::default();
    trunk.add(gpu, "check", &held.matrix())?;
    let mut expected = vec![0.0; columns];
    decode_row(&held.matrix(), 0, &mut expected);
    let (ids, out) = (words(gpu, &[0])?, empty(gpu, columns)?);
    embedding::launch(gpu, trunk.matrix(0), &ids, &out, 1)?;
    let found = gpu.read_floats(&out, 0, columns)?;
    let same = |(found, expected): (&f32, &f32)| {
        found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
    };
    let alone_equal = found.iter().zip(&expected).all(same);
    Ok(Finding {
        name: "codes of 8-bit floats".to_owned(),
        difference: 0.0,
        bound: 0.0,
        alone_equal,
    })
}

/// `[count, hidden, inner]` of five experts at the most: their gates, ups and downs, and two slabs that have them.
pub(super) fn experts(
    gpu: &mut Gpu,
    encoding: Encoding,
    [count, hidden, inner]: [usize; 3],
    numbers: &mut Numbers,
) -> Result<(Vec<[Held; 3]>, experts::Layout, Slabs), GpuError> {
    let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
    let all: Vec<_> = (0..count)
        .map(|_| shapes.map(|(rows, columns)| Held::random(encoding, rows, columns, numbers)))
        .collect();
    let layout =
        experts::Layout::new([encoding; 3], shapes).expect("an encoding that the kernels read");
    let slot_bytes = layout.bytes().next_multiple_of(Gpu::ALIGNMENT as usize);
    let mut slabs = Slabs::with_slab_slots(gpu, 6, slot_bytes, count, 3)?;
    for (expert, held) in all.iter().enumerate() {
        let slot = [1, 3, 5, 2, 4][expert];
        slabs.fill(gpu, slot, &layout.record(held.each_ref().map(Held::planes)))?;
        slabs.name(expert, slabs.slot_word(slot));
    }
    slabs.write_table(gpu)?;
    Ok((all, layout, slabs))
}

/// A layer's experts in two slabs, as tiles of several pairs and as tiles of one.
fn routed(gpu: &mut Gpu, encoding: Encoding, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    let (hidden, inner, count, k, tokens) = (512, 256, 5usize, 2, 13);
    let mut numbers = Numbers::new(3);
    let (all, layout, slabs) = experts(gpu, encoding, [count, hidden, inner], &mut numbers)?;
    let x = numbers.floats(tokens * hidden);
    let chosen: Vec<u32> = (0..tokens as u32).flat_map(|t| [t % 3, 3 + t % 2]).collect();
    let mut expected = vec![0.0; tokens * k * hidden];
    for (pair, &expert) in chosen.iter().enumerate() {
        let [gate, up, down] = &all[expert as usize];
        let token = &x[pair / k * hidden..(pair / k + 1) * hidden];
        let pairs = gate.product(token).into_iter().zip(up.product(token));
        let activated: Vec<f32> =
            pairs.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        expected[pair * hidden..(pair + 1) * hidden].copy_from_slice(&down.product(&activated));
    }
    let input = floats(gpu, &x)?;
    let (between, out) = (empty(gpu, tokens * k * inner)?, empty(gpu, tokens * k * hidden)?);
    let mut results = Vec::new();
    for pairs in [experts::TILE_TOKENS, 1] {
        let (mut tiles, mut order) = (Vec::new(), Vec::new());
        for expert in 0..count as u32 {
            let of: Vec<u32> =
                (0..chosen.len() as u32).filter(|&pair| chosen[pair as usize] == expert).collect();
            for tile in of.chunks(pairs as usize) {
                tiles.extend([expert, order.len() as u32, tile.len() as u32]);
                order.extend(tile);
            }
        }
        let (list, order) = (words(gpu, &tiles)?, words(gpu, &order)?);
        let work = experts::Work {
            tiles: &list,
            first: 0,
            count: tiles.len() / 3,
            pairs,
            order: &order,
            k,
            table_start: 0,
            flag: 1,
            activation: experts::Activation::SwiGlu,
        };
        let record = layout.record_shape();
        experts::launch(gpu, experts::Half::GateUp, &record, &slabs, work, &input, &between)?;
        experts::launch(gpu, experts::Half::Down, &record, &slabs, work, &between, &out)?;
        results.push(gpu.read_floats(&out, 0, tokens * k * hidden)?);
    }
    let name = format!("experts {}", encoding.name());
    let alone_equal = results[0] == results[1];
    add(Finding { name, difference: difference(&results[0], &expected), bound: 3e-5, alone_equal });
    if gpu.adapter().matrices {
        let of = Routed { chosen: &chosen, input: &input, tokens, k, count };
        let tiled = tile::EXPERT_TOKENS.map(|most| by_matrices(gpu, &layout, &slabs, of, most));
        let [few, many] = tiled;
        let (few, many) = (few?, many?);
        let name = format!("experts by matrices {}", encoding.name());
        let difference = difference(&few, &expected);
        add(Finding { name, difference, bound: 3e-5, alone_equal: few == many });
    }
    Ok(())
}

/// Tokens with `k` experts each, of `count`.
#[derive(Clone, Copy)]
struct Routed<'a> {
    chosen: &'a [u32],
    input: &'a Buffer,
    tokens: usize,
    k: usize,
    count: usize,
}

/// The same by cooperative matrices, in tiles of up to `most` pairs that the device makes.
fn by_matrices(
    gpu: &mut Gpu,
    layout: &experts::Layout,
    slabs: &Slabs,
    Routed { chosen, input, tokens, k, count }: Routed<'_>,
    most: u32,
) -> Result<Vec<f32>, GpuError> {
    let record = layout.record_shape();
    let (ids, tiles) = (words(gpu, chosen)?, group::tiles(chosen.len(), count, most));
    let (list, order) = (empty(gpu, 3 * tiles)?, empty(gpu, chosen.len())?);
    group::launch(gpu, &ids, (&list, &order), (chosen.len(), count), most)?;
    let work = experts::Work {
        tiles: &list,
        first: 0,
        count: tiles,
        pairs: most,
        order: &order,
        k,
        table_start: 0,
        flag: 1,
        activation: experts::Activation::SwiGlu,
    };
    let [values, factors] = Halves::sizes(tokens * k, record.hidden);
    let parted = Halves { values: empty(gpu, values)?, factors: empty(gpu, factors)? };
    let (inner, out) =
        (empty(gpu, tokens * k * record.inner)?, empty(gpu, tokens * k * record.hidden)?);
    halves::launch(gpu, input, &parted, (tokens, record.hidden))?;
    tile::launch_experts(gpu, experts::Half::GateUp, &record, slabs, work, &parted, &inner)?;
    halves::launch(gpu, &inner, &parted, (tokens * k, record.inner))?;
    tile::launch_experts(gpu, experts::Half::Down, &record, slabs, work, &parted, &out)?;
    gpu.read_floats(&out, 0, tokens * k * record.hidden)
}
