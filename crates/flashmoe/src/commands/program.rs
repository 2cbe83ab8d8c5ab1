//! `flashmoe inspect --program`: the operations of a model's layers, and what they become on each device.

use engine::backend::{Listing, cuda, gpu};
use engine::model::config::ModelConfig;
use engine::model::program::Program;
use engine::weights::Catalog;
use serde_json::{Value, json};
use store::format::ProjectionShape;

/// Layers that follow each other and do the same.
#[derive(PartialEq)]
pub(super) struct Row {
    first: usize,
    last: usize,
    mixer: &'static str,
    operations: Vec<String>,
    devices: Vec<Device>,
}

/// What the operations of a layer become on one device, for one kind of batch.
#[derive(Clone, PartialEq)]
struct Device {
    name: String,
    /// The launches, or why there are none.
    launches: Result<Vec<String>, String>,
}

/// The launches of one layer on a device, by kind of batch, or why the device refuses the model.
fn of_layer(device: &str, listings: &Result<Vec<Listing>, String>, layer: usize) -> Vec<Device> {
    match listings {
        Err(refusal) => vec![Device { name: device.to_owned(), launches: Err(refusal.clone()) }],
        Ok(listings) => {
            let of_kind = |listing: &Listing| {
                let name = format!("{device}, {}", listing.batch);
                Device { name, launches: Ok(listing.layers[layer].clone()) }
            };
            listings.iter().map(of_kind).collect()
        }
    }
}

/// The rows of a model that was declared in `catalog`.
pub(super) fn rows(
    config: &ModelConfig,
    program: &Program,
    catalog: &Catalog<'_>,
    experts: &[Option<[ProjectionShape; 3]>],
) -> Vec<Row> {
    let on_cuda = cuda::check_model(config, program, catalog, experts)
        .map(|()| cuda::describe(config, catalog, experts, program))
        .map_err(|refusal| refusal.to_string());
    let on_any = gpu::check_model(config, program, catalog, experts)
        .map(|()| gpu::describe(config, catalog, program))
        .map_err(|refusal| refusal.to_string());
    let mut rows: Vec<Row> = Vec::new();
    for (index, layer) in program.layers.iter().enumerate() {
        let operations: Vec<String> = layer.ops().map(|op| op.describe()).collect();
        let processor = Device { name: "processor".to_owned(), launches: Ok(operations.clone()) };
        let mut devices = vec![processor];
        devices.extend(of_layer("CUDA", &on_cuda, index));
        devices.extend(of_layer("any GPU", &on_any, index));
        let mixer = layer.mixer_name();
        match rows.last_mut() {
            Some(row)
                if (&row.operations, &row.devices, row.mixer) == (&operations, &devices, mixer) =>
            {
                row.last = index;
            }
            _ => rows.push(Row { first: index, last: index, mixer, operations, devices }),
        }
    }
    rows
}

/// The rows in words.
pub(super) fn describe(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let layers = match row.first == row.last {
            true => format!("layer {}", row.first),
            false => format!("layers {} to {}", row.first, row.last),
        };
        text.push_str(&format!("{layers}: {}\n", row.mixer));
        for operation in &row.operations {
            text.push_str(&format!("    {operation}\n"));
        }
        for Device { name, launches } in &row.devices {
            match launches {
                Err(refusal) => text.push_str(&format!("  {name}: refused: {refusal}\n")),
                Ok(all) if *all == row.operations => {
                    text.push_str(&format!("  {name}: one by one\n"));
                }
                Ok(all) => {
                    text.push_str(&format!("  {name}:\n"));
                    for launch in all {
                        text.push_str(&format!("    {launch}\n"));
                    }
                }
            }
        }
        text.push('\n');
    }
    text
}

/// The rows as JSON.
pub(super) fn as_json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let device = |device: &Device| match &device.launches {
            Ok(launches) => json!({"device": device.name, "launches": launches}),
            Err(refusal) => json!({"device": device.name, "refused": refusal}),
        };
        let devices: Vec<Value> = row.devices.iter().map(device).collect();
        json!({
            "layers": [row.first, row.last],
            "mixer": row.mixer,
            "operations": row.operations,
            "devices": devices,
        })
    };
    rows.iter().map(row).collect()
}
