//! Weights handed over a part at a time are the weights loaded at once.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::ops::ControlFlow;
use std::path::Path;

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::weights::Catalog;
use store::trunk::LoadMode;

#[test]
fn parts_are_the_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/qwen35-calm-mlx-mixed/model");
    let checkpoint = store::format::open(&folder).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let declare = || {
        let mut catalog = Catalog::new(&checkpoint);
        Model::declare(&config, &mut catalog).unwrap();
        catalog
    };
    let mut goes_on = |_| ControlFlow::Continue(());
    let whole = declare().load(LoadMode::Read, &mut goes_on).unwrap();
    let catalog = declare();
    let mut next = 0;
    let vectors = catalog
        .load_parts(LoadMode::Read, &mut goes_on, &mut |id, part| {
            assert_eq!(id.index(), next);
            next += 1;
            let matrix = whole.matrix(id);
            assert_eq!((part.rows, part.columns), (matrix.rows, matrix.columns));
            assert_eq!(part.weight, matrix.weight);
            assert_eq!((part.scales, part.biases), (matrix.scales, matrix.biases));
            Ok(())
        })
        .unwrap();
    assert_eq!(next, catalog.matrices().count());
    let lengths: Vec<usize> = catalog.vector_lengths().collect();
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
}
