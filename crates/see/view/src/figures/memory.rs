//! The memory of each layer at the end: what is used, and in blocks of which size the rest is free.

use super::Group;
use super::bars::{Bar, Bars, Part, Plot};
use crate::html::{numbers, table};
use crate::input::run::LayerMemory;
use crate::number::{bytes, percent, share, whole};
use crate::svg::key;

/// Bytes of a base page.
const PAGE: u64 = 4096;
/// Classes of free blocks by order.
const FREE: [&str; 10] =
    ["free0", "free1", "free2", "free3", "free4", "free5", "free6", "free7", "free8", "free9"];

/// The figure; nothing where free blocks are not known.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut bars = Bars::default();
    let mut rows = Vec::new();
    for group in groups {
        for row in &group.rows {
            let layers: Vec<&LayerMemory> =
                row.run.layers.iter().filter(|layer| !layer.free_blocks.is_empty()).collect();
            if layers.is_empty() {
                continue;
            }
            match groups.len() {
                1 => bars.head(&row.label),
                _ => bars.head(&format!("{}, {}", group.title, row.label)),
            }
            for layer in layers {
                bars.bar(bar(layer));
                let mut cells = vec![group.title.clone(), row.label.clone(), layer.layer.clone()];
                let numbers = [layer.size_bytes, layer.free_bytes, layer.table_bytes];
                cells.extend(numbers.iter().chain(&layer.free_blocks).map(|number| whole(*number)));
                rows.push(cells);
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let keys: String = [
        ("other", "used"),
        ("background", "page tables"),
        ("free0", "free, single base pages"),
        ("free4", "free, 64 KiB"),
        ("free9", "free huge pages"),
    ]
    .iter()
    .map(|(class, name)| key(class, name))
    .collect();
    let plot = Plot {
        left: 150.0,
        right: 790.0,
        pitch: 20.0,
        exact: Some(100.0),
        unit: "share of the layer's memory, %",
    };
    let orders: Vec<String> = (0..=FREE.len()).map(|order| format!("order {order}")).collect();
    let mut head = vec!["", "policy", "layer", "bytes", "bytes free", "bytes of page tables"];
    head.extend(orders.iter().map(String::as_str));
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    head.truncate(longest);
    format!(
        "<div class=keys>{keys}</div>{}{}",
        bars.draw("Memory of each layer: used, page tables, and free blocks by their size", plot),
        numbers("Numbers, free blocks by order", &table(&head, &rows, 3))
    )
}

fn bar(layer: &LayerMemory) -> Bar {
    let name = match layer.layer.as_str() {
        "l1" => "L1".to_owned(),
        other => other.to_owned(),
    };
    let used = layer.size_bytes.saturating_sub(layer.free_bytes);
    let tables = layer.table_bytes.min(used);
    let mut parts = vec![("other", "used".to_owned(), used - tables)];
    parts.push(("background", "page tables".to_owned(), tables));
    for (order, blocks) in layer.free_blocks.iter().enumerate() {
        let class = FREE[order.min(FREE.len() - 1)];
        let size = PAGE << order;
        let what = format!("{} free blocks of {}", whole(*blocks), bytes(size));
        parts.push((class, what, blocks * size));
    }
    let parts =
        parts.into_iter().filter(|(.., amount)| *amount > 0).map(|(class, what, amount)| {
            let part = share(amount, layer.size_bytes);
            let words = format!("{name}: {what}: {}, {}", bytes(amount), percent(part));
            Part { class, words, value: part * 100.0 }
        });
    // A larger block is several.
    let blocks = layer.free_blocks.iter().enumerate().skip(FREE.len() - 1);
    let huge: u64 = blocks.map(|(order, blocks)| blocks << (order + 1 - FREE.len())).sum();
    let note = format!("{} huge pages free", whole(huge));
    Bar { label: name.clone(), parts: parts.collect(), note, note_apart: true, ..Bar::default() }
}
