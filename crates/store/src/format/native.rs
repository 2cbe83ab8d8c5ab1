//! Opening a native pack.
//!
//! The manifest is verified by its checksum, its layout is recomputed from shapes and encodings, every
//! file must have exactly the announced size, and the checksum table must match the manifest. So a pack
//! that opens is whole; damage inside its payload is found by `verify` or when reads are checked.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::format::Encoding;
use twox_hash::XxHash3_64;

use super::config::Dimensions;
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::head::{self, Head};
use super::layout::{self, MatrixSpans, RecordLayout, Span};
use super::manifest::{self, Layer, Manifest, ProjectionEntry, Spans};
use super::names::{self, Meaning};
use super::place::Place;
use super::sidecar::{self, Sidecar};
use super::{
    Checkpoint, CheckpointFile, Configuration, Element, ExpertExtents, Extent, FileId, JOURNAL,
    LayerExperts, PackInfo, Projection, ProjectionShape, RowTable, SourceKind, Tensor, files, json,
    row_pages,
};
use crate::shown::{quoted, shown};

/// First bytes of `checksums.bin`.
pub(crate) const TABLE_MAGIC: [u8; 8] = *b"FLASHSUM";
/// Magic, version (u32), zero (u32), trunk parts (u64), records (u64).
pub(crate) const TABLE_HEADER_BYTES: usize = 32;

/// True for a folder with a manifest.
pub(super) fn probe(place: &Place<'_>) -> Result<bool, FormatError> {
    place.has(layout::MANIFEST)
}

/// True for a folder that a packer began and did not finish.
pub(super) fn probe_unfinished(place: &Place<'_>) -> Result<bool, FormatError> {
    place.has(JOURNAL)
}

/// An unfinished pack is no checkpoint.
pub(super) fn refuse_unfinished(place: &Place<'_>) -> Result<Checkpoint, FormatError> {
    Err(FormatError::Unfinished { path: place.folder.to_owned() })
}

pub(crate) fn open(folder: &Path) -> Result<Checkpoint, FormatError> {
    let manifest_path = folder.join(layout::MANIFEST);
    let bytes = files::read_small(&manifest_path, json::INDEX_BYTES_MAX)?;
    let (manifest, checksum) = Manifest::parse(&manifest_path, &bytes)?;
    let reader = Reader { folder, manifest: &manifest_path };
    let config = Configuration::new(&manifest_path, manifest.config.clone())?;
    let dimensions = Dimensions::read(&config)?;
    let version = manifest::version(&manifest.tensors, &manifest.layers, &manifest.row_tables);
    if manifest.version != version {
        let found = format!("{} for a pack of version {version}", manifest.version);
        return Err(reader.invalid("version", found));
    }
    // A pack keeps a head as one layer more.
    let with_head = manifest.layers.len() == dimensions.layers + 1;
    let layers = dimensions.layers + usize::from(with_head);
    let (mut tensors, trunk_parts) = reader.trunk(&manifest, layers)?;
    let mut opened = vec![reader.file(layout::TRUNK, manifest.trunk_bytes, checksum)?];
    let mut experts = Vec::new();
    if manifest.layers.len() != layers {
        let found =
            format!("{} for num_hidden_layers {}", manifest.layers.len(), dimensions.layers);
        return Err(reader.invalid("layers", found));
    }
    for (index, layer) in manifest.layers.iter().enumerate() {
        let Some(layer) = layer else {
            experts.push(None);
            continue;
        };
        let file = FileId(opened.len() as u32);
        let (table, bytes) = reader.layer(index, layer, dimensions, file)?;
        let name = format!("{}/{}", layout::EXPERTS, layout::layer_file(index));
        opened.push(reader.file(&name, bytes, 0)?);
        experts.push(Some(table));
    }
    let row_tables = reader.row_tables(&manifest, dimensions.layers, &mut opened)?;
    let head = match with_head {
        false => Head::Absent,
        true => split_head(&mut tensors, &mut experts, dimensions.layers),
    };
    if let Head::Unusable(why) = head {
        return Err(reader.invalid("layers", format!("one more than the configuration has; {why}")));
    }
    let records = manifest.layers.iter().map(|layer| layer.as_ref().map_or(0, |l| l.experts));
    let pack = reader.checksums(&manifest, trunk_parts, records, &row_tables)?;
    reader.copied(&manifest)?;
    let sidecar = Sidecar::read(folder, &config)?;
    Ok(Checkpoint {
        kind: SourceKind::Native,
        root: folder.to_owned(),
        files: opened,
        config,
        generation_config: sidecar.generation_config,
        tokenizer: sidecar.tokenizer,
        tokenizer_config: sidecar.tokenizer_config,
        chat_template: sidecar.chat_template,
        tensors,
        experts,
        norms_are_zero_centred: manifest.norms_are_zero_centred,
        row_tables,
        head,
        input_majors: Default::default(),
        skipped: manifest.skipped,
        unused: manifest.unused,
        pack: Some(pack),
    })
}

/// Takes the tensors and experts of the head, the layer behind the others.
fn split_head(
    tensors: &mut BTreeMap<String, Tensor>,
    experts: &mut Vec<Option<LayerExperts>>,
    layer: usize,
) -> Head {
    let own = tensors.split_off(&format!("layers.{layer}."));
    let of_head = |name: &str| names::layer(name).is_some_and(|(number, _)| number == layer);
    let (own, others) = own.into_iter().partition(|(name, _)| of_head(name));
    tensors.extend::<BTreeMap<_, _>>(others);
    head::whole(own, experts.pop().flatten(), layer)
}

/// Names of trunk parts with their places, in file order.
type TrunkParts = Vec<(String, Span)>;

struct Reader<'a> {
    folder: &'a Path,
    manifest: &'a Path,
}

impl Reader<'_> {
    fn invalid(&self, field: impl AsRef<str>, found: impl AsRef<str>) -> FormatError {
        FormatError::invalid(self.manifest, field, found, DOWNLOAD_AGAIN)
    }

    /// A file of the pack, which must have exactly the announced size.
    fn file(&self, name: &str, bytes: u64, checksum: u64) -> Result<CheckpointFile, FormatError> {
        let path = match name.split_once('/') {
            Some((folder, name)) => files::find(&self.folder.join(folder), name)?,
            None => files::find(self.folder, name)?,
        };
        let path = path.ok_or_else(|| self.invalid(name, "is missing from the pack"))?;
        let opened = files::open_regular(&path)?;
        if opened.length != bytes {
            return Err(FormatError::length(&path, "file size", bytes, opened.length));
        }
        let files::Opened { length, modified_ns, changed_ns, .. } = opened;
        Ok(CheckpointFile { path, length, modified_ns, changed_ns, header_checksum: checksum })
    }

    fn trunk(
        &self,
        manifest: &Manifest,
        layers: usize,
    ) -> Result<(BTreeMap<String, Tensor>, TrunkParts), FormatError> {
        let mut shapes = Vec::with_capacity(manifest.tensors.len());
        for tensor in &manifest.tensors {
            let field = |part: &str| format!("tensors.{}{part}", tensor.name);
            if names::meaning(&tensor.name, layers, 0) != Meaning::Trunk {
                return Err(self.invalid(field(""), "is not the name of a trunk tensor"));
            }
            if tensor.shape.len() > 8 {
                let found = tensor.shape.len() as u64;
                return Err(FormatError::limit(self.manifest, field(".shape"), found, 8));
            }
            let element = Element::parse(&tensor.encoding).ok_or_else(|| {
                self.invalid(field(".encoding"), quoted(&tensor.encoding).to_string())
            })?;
            let fits = layout::flat(&tensor.shape).is_some_and(|(rows, columns)| {
                layout::plane_bytes(rows, columns, element).is_some()
            });
            if !fits {
                let found = format!("{:?} cannot be {}", tensor.shape, shown(&tensor.encoding));
                return Err(self.invalid(field(".shape"), found));
            }
            shapes.push((&tensor.shape[..], element));
        }
        let (spans, bytes) = layout::trunk(shapes.iter().copied())
            .ok_or_else(|| self.invalid("tensors", "take more bytes than a file can have"))?;
        if bytes != manifest.trunk_bytes {
            return Err(
                self.invalid("trunk_bytes", format!("{}, not {bytes}", manifest.trunk_bytes))
            );
        }
        let mut tensors = BTreeMap::new();
        let mut parts = Vec::new();
        for ((tensor, spans), (_, element)) in manifest.tensors.iter().zip(&spans).zip(shapes) {
            self.same_places(&format!("tensors.{}", tensor.name), &tensor.at, spans)?;
            let named = ["weight", "scales", "biases"].into_iter().zip(spans.parts());
            parts.extend(named.map(|(part, span)| (format!("{}.{part}", tensor.name), span)));
            let extent =
                |span: Span| Extent { file: FileId(0), offset: span.offset, length: span.bytes };
            let built = Tensor {
                shape: tensor.shape.clone(),
                element,
                weight: extent(spans.weight),
                scales_biases: spans.scales_biases.map(|(s, b)| (extent(s), extent(b))),
            };
            if tensors.insert(tensor.name.clone(), built).is_some() {
                return Err(self.invalid(format!("tensors.{}", tensor.name), "occurs twice"));
            }
        }
        Ok((tensors, parts))
    }

    /// Tables of rows; their files are added to those that were opened.
    fn row_tables(
        &self,
        manifest: &Manifest,
        layers: usize,
        opened: &mut Vec<CheckpointFile>,
    ) -> Result<BTreeMap<String, RowTable>, FormatError> {
        let mut tables = BTreeMap::new();
        for entry in &manifest.row_tables {
            let file = FileId(opened.len() as u32);
            let (layer, table) =
                entry.table(layers, file, |field, found| self.invalid(field, found))?;
            opened.push(self.file(&row_pages::rows_file(layer), entry.bytes, 0)?);
            if tables.insert(entry.name.clone(), table).is_some() {
                return Err(self.invalid(format!("row_tables.{}", entry.name), "occurs twice"));
            }
        }
        Ok(tables)
    }

    /// The offsets in the manifest must be the ones that the layout gives.
    fn same_places(&self, field: &str, at: &Spans, spans: &MatrixSpans) -> Result<(), FormatError> {
        let expected = Spans::from(spans);
        if *at == expected {
            return Ok(());
        }
        let found = format!("{at:?}, expected {expected:?}");
        Err(self.invalid(format!("{field}.at"), found))
    }

    /// A layer's expert table and the size of its file.
    fn layer(
        &self,
        index: usize,
        layer: &Layer,
        dimensions: Dimensions,
        file: FileId,
    ) -> Result<(LayerExperts, u64), FormatError> {
        let field = |part: &str| format!("layers[{index}].{part}");
        if layer.experts != dimensions.experts || layer.experts == 0 {
            let found = format!("{} for num_experts {}", layer.experts, dimensions.experts);
            return Err(self.invalid(field("experts"), found));
        }
        let shape = |name: &str, projection, entry: &ProjectionEntry| {
            let encoding = Encoding::parse(&entry.encoding).ok_or_else(|| {
                self.invalid(
                    field(&format!("{name}.encoding")),
                    quoted(&entry.encoding).to_string(),
                )
            })?;
            let [rows, columns] = entry.shape;
            if dimensions.projection(projection) != (rows, columns) {
                let found = format!("{:?} contradicts the configuration", entry.shape);
                return Err(self.invalid(field(&format!("{name}.shape")), found));
            }
            Ok(ProjectionShape { rows, columns, encoding })
        };
        let shapes = [
            shape("gate", Projection::Gate, &layer.gate)?,
            shape("up", Projection::Up, &layer.up)?,
            shape("down", Projection::Down, &layer.down)?,
        ];
        let RecordLayout { projections, bytes } = layout::record(&shapes)
            .ok_or_else(|| self.invalid(field("gate.encoding"), "does not fit the shape"))?;
        if layer.record_bytes != bytes {
            let found = format!("{}, not {bytes}", layer.record_bytes);
            return Err(self.invalid(field("record_bytes"), found));
        }
        let entries = [("gate", &layer.gate), ("up", &layer.up), ("down", &layer.down)];
        for ((name, entry), spans) in entries.iter().zip(&projections) {
            self.same_places(&field(name), &entry.at, spans)?;
        }
        let total = bytes.checked_mul(layer.experts as u64);
        let total = total.ok_or_else(|| self.invalid(field("record_bytes"), "overflows"))?;
        let expert = |number: u64| {
            let extent = |span: Span| Extent {
                file,
                offset: number * bytes + span.offset,
                length: span.bytes,
            };
            ExpertExtents {
                weight: projections.map(|spans| extent(spans.weight)),
                scales_biases: projections
                    .map(|spans| spans.scales_biases.map(|(s, b)| (extent(s), extent(b)))),
            }
        };
        let experts = (0..layer.experts as u64).map(expert).collect();
        Ok((LayerExperts { shapes, experts }, total))
    }

    /// Reads `checksums.bin`.
    fn checksums(
        &self,
        manifest: &Manifest,
        parts: TrunkParts,
        records: impl Iterator<Item = usize>,
        row_tables: &BTreeMap<String, RowTable>,
    ) -> Result<PackInfo, FormatError> {
        let counts: Vec<usize> = records.collect();
        let runs = row_tables.iter().map(|(name, table)| (name.clone(), table.runs().count()));
        let runs: Vec<(String, usize)> = runs.collect();
        let of_rows = runs.iter().map(|(_, count)| count).sum::<usize>();
        let total = parts.len() + counts.iter().sum::<usize>() + of_rows;
        let bytes = (TABLE_HEADER_BYTES + 8 * total) as u64;
        if manifest.checksums.bytes != bytes {
            let found = format!("{}, not {bytes}", manifest.checksums.bytes);
            return Err(self.invalid("checksums.bytes", found));
        }
        let path = self.file(layout::CHECKSUMS, bytes, 0)?.path;
        let table = files::read_small(&path, bytes)?;
        let (found, expected) = (XxHash3_64::oneshot(&table), manifest.checksums.xxh3.0);
        if found != expected {
            let field = "table".to_owned();
            return Err(FormatError::Checksum { file: path, field, expected, found });
        }
        if table.get(..TABLE_HEADER_BYTES) != Some(&table_header(parts.len(), total - parts.len()))
        {
            let found = "another magic number, version or count";
            return Err(FormatError::invalid(&path, "header", found, DOWNLOAD_AGAIN));
        }
        let mut values = table[TABLE_HEADER_BYTES..].chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let ends = parts.iter().skip(1).map(|(_, span)| span.offset).chain([manifest.trunk_bytes]);
        let mut trunk = Vec::with_capacity(parts.len());
        for ((name, span), end) in parts.iter().zip(ends) {
            let extent = Extent { file: FileId(0), offset: span.offset, length: end - span.offset };
            trunk.push((name.clone(), extent, values.next().unwrap_or_default()));
        }
        let records = counts.iter().map(|&count| values.by_ref().take(count).collect()).collect();
        let rows =
            runs.into_iter().map(|(name, count)| (name, values.by_ref().take(count).collect()));
        let rows = rows.collect();
        Ok(PackInfo {
            rows,
            version: manifest.version,
            source_kind: manifest.source.kind.clone(),
            source_fingerprint: manifest.source.fingerprint.0,
            recipe: manifest.recipe.clone(),
            requantised: manifest.errors(),
            trunk,
            records,
            copied: manifest.copied.iter().map(|c| (c.name.clone(), c.xxh3.0)).collect(),
        })
    }

    fn copied(&self, manifest: &Manifest) -> Result<(), FormatError> {
        for copied in &manifest.copied {
            let field = format!("copied.{}", copied.name);
            if !sidecar::FILES.contains(&copied.name.as_str()) {
                return Err(self.invalid(field, "is not a file that packs hold"));
            }
            self.file(&copied.name, copied.bytes, 0)?;
        }
        Ok(())
    }
}

/// The first bytes of `checksums.bin`.
pub(crate) fn table_header(trunk: usize, records: usize) -> [u8; TABLE_HEADER_BYTES] {
    let mut header = [0; TABLE_HEADER_BYTES];
    header[..8].copy_from_slice(&TABLE_MAGIC);
    header[8..12].copy_from_slice(&layout::VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(trunk as u64).to_le_bytes());
    header[24..].copy_from_slice(&(records as u64).to_le_bytes());
    header
}
