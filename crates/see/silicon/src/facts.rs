//! What CPUID says. In a VM it is what the hypervisor lets it say.

use raw_cpuid::{Associativity, CacheType, CpuId, DatType};

/// A data cache as CPUID tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFact {
    /// 1 for the first.
    pub level: u8,
    /// Bytes.
    pub bytes: u64,
    /// Associativity.
    pub ways: u32,
}

/// A data TLB as CPUID tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbFact {
    /// 1 for the first.
    pub level: u8,
    /// It holds huge pages; base pages otherwise.
    pub huge: bool,
    /// Entries.
    pub entries: u32,
    /// Associativity, where it is told; `entries` if any page can be anywhere.
    pub ways: Option<u32>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// As the maker names it.
    pub name: String,
    /// Made by AMD, or by Hygon after AMD's.
    pub is_amd: bool,
    /// There is a hypervisor below, which hides its tables and may hide the truth.
    pub in_vm: bool,
    /// Data caches.
    pub caches: Vec<CacheFact>,
    /// Data TLBs.
    pub tlbs: Vec<TlbFact>,
}

impl Facts {
    /// Asks the processor this runs on.
    pub fn of_this_processor() -> Self {
        let cpuid = CpuId::new();
        let vendor = cpuid.get_vendor_info();
        let vendor = vendor.as_ref().map_or("", |vendor| vendor.as_str());
        let brand = cpuid.get_processor_brand_string();
        let is_amd = matches!(vendor, "AuthenticAMD" | "HygonGenuine");
        let caches = cpuid.get_cache_parameters().into_iter().flatten();
        let caches = caches
            .filter(|cache| matches!(cache.cache_type(), CacheType::Data | CacheType::Unified));
        let cache = |cache: raw_cpuid::CacheParameter| CacheFact {
            level: cache.level(),
            bytes: (cache.sets() * cache.associativity() * cache.coherency_line_size()) as u64,
            ways: cache.associativity() as u32,
        };
        let mut tlbs = if is_amd { amd_tlbs(&cpuid) } else { intel_tlbs(&cpuid) };
        tlbs.retain(|tlb| tlb.entries > 0);
        Self {
            name: brand
                .map_or_else(|| "unnamed".to_owned(), |brand| brand.as_str().trim().to_owned()),
            is_amd,
            in_vm: cpuid.get_feature_info().is_some_and(|features| features.has_hypervisor()),
            caches: caches.map(cache).collect(),
            tlbs,
        }
    }

    /// A cache by its level.
    pub fn cache(&self, level: u8) -> Option<CacheFact> {
        self.caches.iter().copied().find(|cache| cache.level == level)
    }

    /// A TLB by its level and page size.
    pub fn tlb(&self, level: u8, huge: bool) -> Option<TlbFact> {
        self.tlbs.iter().copied().find(|tlb| tlb.level == level && tlb.huge == huge)
    }
}

/// Leaves 0x80000005 and 0x80000006 (AMD64 Architecture Programmer's Manual, volume 3, E.4.4 and E.4.5).
fn amd_tlbs(cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) -> Vec<TlbFact> {
    let fact = |level, huge, entries: u32, ways| TlbFact {
        level,
        huge,
        entries,
        ways: match ways {
            Associativity::FullyAssociative => Some(entries),
            Associativity::DirectMapped => Some(1),
            Associativity::NWay(ways) => Some(ways.into()),
            Associativity::Disabled | Associativity::Unknown => None,
        },
    };
    let mut found = Vec::new();
    if let Some(l1) = cpuid.get_l1_cache_and_tlb_info() {
        found.push(fact(1, false, l1.dtlb_4k_size().into(), l1.dtlb_4k_associativity()));
        found.push(fact(1, true, l1.dtlb_2m_4m_size().into(), l1.dtlb_2m_4m_associativity()));
    }
    if let Some(l2) = cpuid.get_l2_l3_cache_and_tlb_info() {
        found.push(fact(2, false, l2.dtlb_4k_size().into(), l2.dtlb_4k_associativity()));
        found.push(fact(2, true, l2.dtlb_2m_4m_size().into(), l2.dtlb_2m_4m_associativity()));
    }
    found
}

/// Leaf 0x18 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A).
fn intel_tlbs(cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) -> Vec<TlbFact> {
    let mut found = Vec::new();
    for tlb in cpuid.get_deterministic_address_translation_info().into_iter().flatten() {
        // Those of stores alone are not what loads use.
        if !matches!(tlb.cache_type(), DatType::DataTLB | DatType::UnifiedTLB | DatType::LoadOnly) {
            continue;
        }
        let entries = u32::from(tlb.ways()) * tlb.sets();
        let ways = if tlb.is_fully_associative() { entries } else { tlb.ways().into() };
        for (huge, held) in [(false, tlb.has_4k_entries()), (true, tlb.has_2mb_entries())] {
            if held {
                found.push(TlbFact { level: tlb.cache_level(), huge, entries, ways: Some(ways) });
            }
        }
    }
    found
}
