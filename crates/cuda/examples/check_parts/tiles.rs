//! Products of many tokens with split activations against those with activations as they are, and their time: a part of
//! the example `check`.

use cuda::launch::{self, SplitForm, SplitTokens};
use cuda::{Matrix, Span};

use super::Bench;

impl Bench {
    fn split(&self, x: Span<f32>, rows: usize, columns: usize) -> SplitTokens {
        self.split_as(SplitForm::Affine, x, rows, columns)
    }

    /// Split activations for matrices of a form.
    pub(super) fn split_as(
        &self,
        form: SplitForm,
        x: Span<f32>,
        rows: usize,
        columns: usize,
    ) -> SplitTokens {
        let parts = self.poison(rows * columns).bytes();
        let split = SplitTokens { parts, sums: self.poison(rows * columns / 32), form };
        launch::split(&self.stream, x, None, (rows, columns), None, &split).unwrap();
        split
    }

    pub(super) fn product(
        &self,
        x: Span<f32>,
        tokens: usize,
        matrix: Matrix,
        split: Option<&SplitTokens>,
    ) -> Span<f32> {
        let out = self.poison(tokens * matrix.rows());
        launch::tile_linear(&self.stream, x, tokens, matrix, out, false, split).unwrap();
        out
    }

    /// Every encoding that split activations serve, over odd numbers of tokens and rows.
    pub(super) fn tiles(&self) {
        for (bits, group) in
            [(4, 64), (4, 32), (4, 128), (8, 64), (8, 32), (8, 128), (2, 64), (2, 32), (2, 128)]
        {
            for (rows, columns, tokens) in
                [(300, 2048, 1), (40, 512, 17), (5000, 128, 129), (512, 640, 300)]
            {
                let matrix = self.matrix(rows, columns, bits, group);
                let x = self.random(tokens * columns);
                let split = self.split(x, tokens, columns);
                let (found, expected) = (
                    self.product(x, tokens, matrix, Some(&split)),
                    self.product(x, tokens, matrix, None),
                );
                let case = format!("{bits} bits / {group}, {rows} x {columns}, {tokens} tokens");
                self.compare(&format!("split {case}"), found, expected);
                let last = x.part((tokens - 1) * columns, columns);
                let alone = self.product(last, 1, matrix, Some(&self.split(last, 1, columns)));
                let found = self.read(found);
                self.same_bits("  a token alone", &self.read(alone), &found[(tokens - 1) * rows..]);
            }
        }
    }

    /// Time of the larger products of the 35B shape's chunks.
    pub(super) fn tiles_table(&self) {
        for (name, rows, columns) in [
            ("delta inputs", 12_352, 2048),
            ("output", 2048, 4096),
            ("shared gate", 512, 2048),
            ("shared down", 2048, 512),
        ] {
            let matrices: Vec<Matrix> = (0..4).map(|_| self.matrix(rows, columns, 4, 64)).collect();
            for tokens in [128, 512, 2048, 8192] {
                let x = self.random(tokens * columns);
                let split = self.split(x, tokens, columns);
                let out = self.poison(tokens * rows);
                let time = |split: Option<&SplitTokens>| {
                    self.time(4, &|turn| {
                        launch::tile_linear(
                            &self.stream,
                            x,
                            tokens,
                            matrices[turn],
                            out,
                            false,
                            split,
                        )
                    })
                };
                let (plain, fast) = (time(None), time(Some(&split)));
                let splitting = self.time(4, &|_| {
                    launch::split(&self.stream, x, None, (tokens, columns), None, &split)
                });
                let work = 2.0 * (rows * columns * tokens) as f64 / 1e6;
                println!(
                    "35B {name:<13} {tokens:>5} tokens: {plain:9.1} us plain {:6.1} TFLOP/s, \
                     {fast:9.1} us split {:6.1} TFLOP/s, splitting {splitting:6.1} us",
                    work / plain,
                    work / fast
                );
            }
        }
    }
}
