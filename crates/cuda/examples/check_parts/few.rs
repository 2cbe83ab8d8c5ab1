//! Products of few tokens of a prompt against those of many: the same bits, and their time. A part of the example
//! `check`.

use cuda::launch::{self, ExpertParts, Groups, PairBuffers, SplitForm, SplitTokens};
use cuda::{ExpertShapes, Matrix, Span};
use kernels::format::{Encoding, FloatType};

use super::Bench;

impl Bench {
    /// Several matrices of one input at once against each by tiles of many tokens, over odd numbers of tokens and rows.
    pub(super) fn few(&self) {
        for (bits, group) in
            [(4, 64), (4, 32), (4, 128), (8, 64), (8, 32), (8, 128), (2, 64), (2, 32), (2, 128)]
        {
            for (columns, tokens) in
                [(2048, 1), (512, 7), (128, 8), (640, 9), (4096, 16), (1152, 17), (2176, 64)]
            {
                let matrices: Vec<Matrix> =
                    [300, 1, 40, 512].map(|rows| self.matrix(rows, columns, bits, group)).into();
                let other = self.matrix(70, columns, if bits == 8 { 4 } else { 8 }, group);
                let displaced = self.displaced(140, columns, bits, group);
                let matrices: Vec<Matrix> =
                    matrices.into_iter().chain([other, displaced]).collect();
                let x = self.random(tokens * columns);
                let split = self.split_as(SplitForm::Affine, x, tokens, columns);
                // Neither form has to be the faster one.
                for (add, form) in [
                    (false, None),
                    (true, Some(launch::FewForm::Columns)),
                    (false, Some(launch::FewForm::Rows)),
                ] {
                    let outs: Vec<(Span<f32>, Span<f32>)> = matrices
                        .iter()
                        .map(|matrix| {
                            let before = self.random(tokens * matrix.rows());
                            (before, self.twin(before))
                        })
                        .collect();
                    let jobs: Vec<_> =
                        matrices.iter().zip(&outs).map(|(&m, outs)| (m, outs.0)).collect();
                    let (stream, split) = (&self.stream, Some(&split));
                    match form {
                        None => launch::tile_products(stream, x, tokens, &jobs, add, split),
                        form => launch::tile_few(stream, tokens, &jobs, add, split.unwrap(), form),
                    }
                    .unwrap();
                    for (matrix, (found, expected)) in matrices.iter().zip(outs) {
                        launch::tile_linear(stream, x, tokens, *matrix, expected, add, split)
                            .unwrap();
                        let rows = matrix.rows();
                        let case = format!(
                            "few: {bits} bits / {group}, {rows} x {columns}, {tokens} tokens, add {add}, {form:?}"
                        );
                        self.same_bits(&case, &self.read(found), &self.read(expected));
                    }
                }
            }
        }
        self.few_pairs();
    }

    /// A matrix whose pieces begin four bytes behind what memory is aligned to.
    fn displaced(&self, rows: usize, columns: usize, bits: u8, group: u16) -> Matrix {
        let encoding = Encoding::Affine { bits, group, scale: FloatType::Bf16 };
        let [weight, scales, biases] = self.pieces(rows, columns, bits, group).map(|piece| {
            let bytes: Vec<u8> = [0; 4].into_iter().chain(piece.iter().copied()).collect();
            self.bytes(&bytes).part(4, piece.len())
        });
        Matrix::new(encoding, rows, columns, weight, scales, biases)
    }

    /// Routed experts of few tokens against the same tokens among many others.
    fn few_pairs(&self) {
        let (experts, k) = (6, 3);
        for (hidden, inner, bits, group) in
            [(2048, 512, 4, 64), (512, 256, 4, 32), (256, 640, 8, 128), (192, 64, 2, 64)]
        {
            let (shapes, addresses) = self.records(experts, hidden, inner, bits, group);
            let addresses = self.long_words(&addresses);
            let tokens = 40;
            let x = self.random(tokens * hidden);
            let chosen: Vec<u32> = (0..tokens as u32)
                .flat_map(|token| [token % 6, (token + 1) % 6, (token * 2 + 3) % 6])
                .collect();
            let all = self.pairs_of(x, &chosen, tokens, k, &shapes, addresses);
            // Up to 36 pairs in tiles of 8, up to 96 in tiles of 16.
            for few in [1, 3, 12, 13, 32] {
                let found = self.pairs_of(
                    x.part(0, few * hidden),
                    &chosen[..few * k],
                    few,
                    k,
                    &shapes,
                    addresses,
                );
                let case =
                    format!("few: {bits} bits / {group}, experts {hidden} x {inner}, {few} tokens");
                self.same_bits(&case, &found, &all[..few * k * hidden]);
            }
        }
    }

    /// Outputs of all pairs, by token and rank.
    fn pairs_of(
        &self,
        x: Span<f32>,
        chosen: &[u32],
        tokens: usize,
        k: usize,
        shapes: &ExpertShapes,
        addresses: Span<u64>,
    ) -> Vec<f32> {
        let (pairs, experts) = (tokens * k, addresses.len());
        let (hidden, inner) = (shapes.gate().columns(), shapes.inner());
        let words = |count: usize| self.words(&vec![u32::MAX; count]);
        let groups = Groups {
            starts: words(experts + 1),
            pair_token: words(pairs),
            place: words(pairs),
            tiles: words(3 * launch::tile_limit(pairs, experts)),
            tile_count: words(1),
        };
        launch::group(&self.stream, self.words(chosen), tokens, k, &groups).unwrap();
        let buffers = PairBuffers {
            gate: self.poison(pairs * inner),
            up: self.poison(pairs * inner),
            out: self.poison(pairs * hidden),
        };
        let split = |rows: usize, columns: usize| SplitTokens {
            parts: self.poison(rows * columns).bytes(),
            sums: self.poison(rows * columns / 32),
            form: SplitForm::Affine,
        };
        let parts = ExpertParts {
            tokens: self.split_as(SplitForm::Affine, x, tokens, hidden),
            inner: split(pairs, inner),
        };
        launch::experts_tiles(
            &self.stream,
            x,
            pairs,
            &groups,
            addresses,
            shapes,
            &buffers,
            Some(&parts),
            None,
        )
        .unwrap();
        let (out, place) = (self.read(buffers.out), self.read_words(groups.place));
        place.iter().flat_map(|&at| out[at as usize * hidden..][..hidden].to_vec()).collect()
    }

    /// Time of the products of a layer of the 35B shape for few tokens, by both kernels.
    pub(super) fn few_table(&self) {
        for (name, rows, columns) in [
            ("delta inputs", 12_352, 2048),
            ("output", 2048, 4096),
            ("router and shared", 1281, 2048),
            ("shared down", 2048, 512),
        ] {
            let matrices: Vec<Matrix> =
                (0..32).map(|_| self.matrix(rows, columns, 4, 64)).collect();
            for tokens in [1, 8, 16, 32, 64, 128] {
                let x = self.random(tokens * columns);
                let split = self.split_as(SplitForm::Affine, x, tokens, columns);
                let out = self.poison(tokens * rows);
                let (stream, split) = (&self.stream, Some(&split));
                let tiles = self.time(32, &|turn| {
                    launch::tile_linear(stream, x, tokens, matrices[turn % 32], out, false, split)
                });
                let few = [launch::FewForm::Columns, launch::FewForm::Rows].map(|form| {
                    self.time(32, &|turn| {
                        let job = [(matrices[turn % 32], out)];
                        launch::tile_few(stream, tokens, &job, false, split.unwrap(), Some(form))
                    })
                });
                let bytes = (rows * columns * 9 / 16) as f64 / 1e6;
                let best = few[0].min(few[1]);
                println!(
                    "35B {name:<17} {tokens:>3} tokens: {tiles:6.1} us by tiles, {:6.1} by few columns, {:6.1} by few \
                     rows, {:.2} TB/s",
                    few[0],
                    few[1],
                    bytes / best
                );
            }
        }
    }
}
