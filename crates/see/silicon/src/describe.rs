//! Findings and facts as a CPU model, every constant with its origin.
//!
//! What was measured goes before what CPUID says, except for a size that CPUID tells and that lies between
//! the two sizes measured: then CPUID is exact and the measurement its witness. What neither tells is
//! assumed, as the preset of the same maker has it.

use crate::facts::Facts;
use crate::findings::{Findings, Reach, Translation};
use std::collections::BTreeMap;
use strata_hardware::{CacheGeometry, CpuModel, ModelError, TlbArray, TlbLevel};
use strata_text::number::percent;

/// The largest number of ways of a TLB that is not fully associative, in the model.
const TLB_WAYS: u32 = 64;

/// A CPU model as a file.
#[derive(Clone, Debug)]
pub struct Description {
    /// What `--cpu FILE` reads.
    pub toml: String,
    /// The model in it.
    pub model: CpuModel,
    /// What the reader of the file has to know, a sentence each.
    pub remarks: Vec<String>,
}

/// Where constants come from, by the start of their names.
struct Origins {
    of: BTreeMap<String, String>,
}

impl Origins {
    /// `spread` is how much longer the median round took that it is read from.
    fn measured(&mut self, name: &str, how: &str, spread: f64) {
        let spread = percent(spread);
        self.of.insert(name.to_owned(), format!("measured: {how} (spread {spread})"));
    }

    fn told(&mut self, name: &str, how: &str) {
        self.of.insert(name.to_owned(), format!("from CPUID{how}"));
    }

    fn assumed(&mut self, name: &str, how: &str) {
        self.of.insert(name.to_owned(), format!("assumed: {how}"));
    }
}

/// Describes a processor.
///
/// # Errors
/// [`ModelError`] when what was found makes no CPU.
pub fn describe(name: &str, findings: &Findings, facts: &Facts) -> Result<Description, ModelError> {
    let parent = if facts.is_amd { "zen3" } else { "skylake-gold-6138" };
    let mut model = CpuModel::preset(parent)?;
    let as_parent = format!("as {parent} has it");
    let mut origins = Origins { of: BTreeMap::new() };
    let mut remarks = Vec::new();
    name.clone_into(&mut model.name);
    model.about = format!("{}, measured by strata calibrate", facts.name);
    for group in ["core", "tlb", "walk", "cache", "virtualization"] {
        origins.assumed(group, &as_parent);
    }
    model.core.frequency_mhz = findings.mhz.round() as u32;
    let how = "additions that wait for each other";
    origins.measured("core.frequency_mhz", how, findings.mhz_spread);
    caches(&mut model, findings, facts, &mut origins, &mut remarks);
    tlbs(&mut model, findings, facts, &mut origins, &mut remarks);
    if let Some(walk) = findings.base.walk {
        remarks.push(format!(
            "a walk for a base page takes {walk:.0} cycles beyond the second level of the TLB; the model \
             computes walks, so no constant has it"
        ));
    }
    if facts.in_vm {
        remarks.push(
            "this is a VM: walks go through the hypervisor's tables too, and what is seen as a page may be \
             several below; what CPUID says is what the hypervisor lets it say"
                .to_owned(),
        );
    }
    if findings.split {
        remarks.push(
            "lines in one huge page miss the TLB as those in base pages do; a hypervisor that backs them with \
             base pages does that. What is said of huge pages may be about their pieces, and latencies beyond \
             the reach of the TLB, memory's too, may have walks in them"
                .to_owned(),
        );
    }
    if findings.is_noisy() {
        remarks.push(format!(
            "the machine is too noisy to tell a few cycles: the median round takes {} longer than the \
             quickest; measure again when nothing else runs",
            percent(findings.spread)
        ));
    }
    // A prefix that only longer ones with another origin refine would call them unconfirmed too.
    let names = constants(&model);
    let known = |name: &str| origin(&origins.of, name).is_some_and(|of| of.starts_with("assumed"));
    model.unconfirmed = names.into_iter().filter(|name| known(name)).collect();
    model.sources = origins.of;
    let toml = written(&model, &remarks)?;
    let model = CpuModel::from_toml(&toml)?;
    Ok(Description { toml, model, remarks })
}

/// The origin of a constant: that of the longest start of its name.
fn origin<'o>(origins: &'o BTreeMap<String, String>, name: &str) -> Option<&'o str> {
    let starts = origins.iter().filter(|(start, _)| name.starts_with(start.as_str()));
    starts.max_by_key(|(start, _)| start.len()).map(|(_, origin)| origin.as_str())
}

/// Names of the model's constants, as `--set` has them.
fn constants(model: &CpuModel) -> Vec<String> {
    use strata_params::Parameters;
    model.parameters().into_iter().map(|constant| constant.name.to_string()).collect()
}

fn caches(
    model: &mut CpuModel,
    findings: &Findings,
    facts: &Facts,
    origins: &mut Origins,
    remarks: &mut Vec<String>,
) {
    let all = [&mut model.cache.l1d, &mut model.cache.l2, &mut model.cache.llc];
    for (cache, (level, name)) in all.into_iter().zip([(1_u8, "l1d"), (2, "l2"), (3, "llc")]) {
        let fact = facts.cache(level);
        // Of the levels that show, the one that this is. Others may have most of the last level, so its
        // plateau may end anywhere above the second level.
        let second = facts.cache(2).map_or(0, |second| second.bytes);
        let mut all = findings.caches.iter();
        let seen = match (level, fact) {
            (3, Some(_)) => all.find(|seen| seen.bytes.fits > second),
            (_, Some(fact)) => all.find(|seen| near(seen.bytes, fact.bytes)),
            (_, None) => all.nth(usize::from(level) - 1),
        };
        if let Some(fact) = fact {
            *cache = CacheGeometry { bytes: fact.bytes, ways: fact.ways, cycles: cache.cycles };
            let how = match seen {
                Some(seen) => format!("; measured: {}", between(seen.bytes, "bytes")),
                None => "; no plateau of this size was seen".to_owned(),
            };
            origins.told(&format!("cache.{name}."), &how);
        } else if let Some(seen) = seen {
            let sets = (seen.bytes.fits / 64 / 8).max(64);
            *cache = CacheGeometry { bytes: sets * 64 * 8, ways: 8, cycles: cache.cycles };
            let how = between(seen.bytes, "bytes");
            origins.measured(&format!("cache.{name}."), &how, seen.hit.spread);
            origins.assumed(&format!("cache.{name}.ways"), "CPUID does not tell");
        }
        let cycles = format!("cache.{name}.cycles");
        match seen {
            Some(seen) => {
                cache.cycles = seen.hit.cycles.round() as u32;
                let how = "dependent loads on the plateau, 64 B apart in huge pages";
                origins.measured(&cycles, how, seen.hit.spread);
            }
            None => {
                origins.assumed(&cycles, "no plateau of this size was seen");
                remarks.push(format!("cache.{name} shows no plateau; its latency is assumed"));
            }
        }
    }
    match findings.memory {
        Some(memory) => {
            model.cache.memory_cycles = memory.cycles.round() as u32;
            let walks = if findings.split { ", perhaps with walks" } else { "" };
            let how = format!("the last plateau, 64 B apart in huge pages{walks}");
            origins.measured("cache.memory_cycles", &how, memory.spread);
        }
        None => remarks.push(
            "latency still rises at the largest size; memory's is assumed, so give a larger --most"
                .to_owned(),
        ),
    }
}

/// A plateau that ends about where the cache does: replacement is not LRU, and base pages below collide.
fn near(seen: Reach, bytes: u64) -> bool {
    seen.fits <= bytes * 3 / 2
        && seen.exceeds.is_none_or(|exceeds| exceeds > bytes / 2)
        && seen.fits * 3 >= bytes
}

fn between(reach: Reach, unit: &str) -> String {
    match reach.exceeds {
        Some(exceeds) => format!("{} {unit} fit, {exceeds} do not", reach.fits),
        None => format!("all of {} {unit} fit", reach.fits),
    }
}

fn tlbs(
    model: &mut CpuModel,
    findings: &Findings,
    facts: &Facts,
    origins: &mut Origins,
    remarks: &mut Vec<String>,
) {
    let sees = |of: &Translation, level| if level == 1 { of.l1 } else { of.l2 };
    for (level, array) in [(1_u8, &mut model.tlb.l1), (2, &mut model.tlb.l2)] {
        let mut arrays = BTreeMap::new();
        for (huge, key, of) in [(false, "4k", &findings.base), (true, "2m", &findings.huge)] {
            let name = format!("tlb.l{level}.{key}");
            let fact = facts.tlb(level, huge);
            let seen = sees(of, level);
            let (entries, ways) = match (fact, seen) {
                (Some(fact), Some(seen)) if seen.holds(fact.entries.into()) => {
                    let how = format!("; measured: {}", between(seen, "pages"));
                    origins.told(&name, &how);
                    (fact.entries, fact.ways)
                }
                (fact, Some(seen)) if seen.exceeds.is_some() => {
                    let told = fact.map_or_else(
                        || "CPUID does not tell".to_owned(),
                        |fact| format!("CPUID says {}", fact.entries),
                    );
                    let how = format!("{}; {told}; ways assumed", between(seen, "pages"));
                    origins.measured(&name, &how, of.spread);
                    (seen.fits as u32, None)
                }
                (Some(fact), seen) => {
                    let how = match seen {
                        Some(seen) => format!("; {}", between(seen, "pages")),
                        None => "; not seen by measuring".to_owned(),
                    };
                    origins.told(&name, &how);
                    (fact.entries, fact.ways)
                }
                (None, _) => {
                    remarks.push(format!("{name}: neither measured nor told; assumed"));
                    // As many as the maker's other processor has for this page size.
                    let parent = array.0.iter().find(|(held, _)| held.contains(key));
                    let Some((_, parent)) = parent else { continue };
                    origins.assumed(&name, "neither measured nor told by CPUID");
                    (parent.entries, Some(parent.ways))
                }
            };
            let (entries, ways) = buildable(entries, ways);
            arrays.insert(key.to_owned(), TlbArray { entries, ways });
        }
        // 1 GiB pages are not measured.
        if let Some((_, giant)) = array.0.iter().find(|(held, _)| held.contains("1g")) {
            arrays.insert("1g".to_owned(), *giant);
        }
        *array = TlbLevel(arrays);
    }
    match findings.base.l2_hit {
        Some(cycles) => {
            model.tlb.l2_hit_cycles = cycles.round() as u32;
            origins.measured(
                "tlb.l2_hit_cycles",
                "base pages, 4 KiB + 64 B apart, over as many lines side by side",
                findings.base.spread,
            );
        }
        None => {
            remarks.push("the second level of the TLB does not show; its cost is assumed".into())
        }
    }
}

/// The nearest TLB that can be built: entries over ways are a power of two. Ways that are not told are as
/// few as will do from 4 on.
fn buildable(entries: u32, ways: Option<u32>) -> (u32, u32) {
    let entries = entries.clamp(1, u32::from(u16::MAX / 2));
    let fits =
        |ways: u32| ways > 0 && entries.is_multiple_of(ways) && (entries / ways).is_power_of_two();
    let told = ways.filter(|ways| fits(*ways) && (*ways <= TLB_WAYS || *ways == entries));
    let ways = told.or_else(|| (4..=TLB_WAYS).find(|ways| fits(*ways))).unwrap_or(entries);
    (entries, ways)
}

/// The file: a line for each constant, with its origin behind it.
fn written(model: &CpuModel, remarks: &[String]) -> Result<String, ModelError> {
    let plain = toml::to_string(model)
        .map_err(|error| ModelError::Syntax { line: 1, cause: error.to_string() })?;
    let mut text = String::from(
        "# Made by strata calibrate. Behind every constant stands where it comes from.\n",
    );
    for remark in remarks {
        text += &format!("# Note: {remark}.\n");
    }
    let mut section = String::new();
    for line in plain.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.replace('"', "").clone_into(&mut section);
        }
        let key = line.split_once(" = ").map(|(key, _)| format!("{section}.{key}"));
        let from = key.filter(|_| !section.is_empty() && section != "sources");
        text += line;
        if let Some(from) = from.and_then(|key| origin(&model.sources, &key)) {
            text += &format!(" # {from}");
        }
        text.push('\n');
    }
    Ok(text)
}
