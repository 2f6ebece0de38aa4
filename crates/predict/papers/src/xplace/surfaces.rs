//! What is varied besides the settings of the tables, one thing at a time.

use super::conditions::{
    FILL, FILLS, FRAGMENTATION, GUEST, LATENCY, LOAD, LOADS, MEMORY, OCCUPANCY, PLACEMENTS,
    Program, Setting, THREADS, THROUGHPUT, WAYS, in_ways, working_set,
};

/// A setting that owns its words.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) column: String,
    name: String,
    workload: String,
    ways: u32,
    hash: bool,
    fill: &'static str,
    placement: &'static str,
    fragmentation: &'static str,
    memory: &'static str,
    load: &'static str,
}

impl Point {
    /// The setting, with seed 1.
    pub(super) fn borrowed<T>(&self, use_it: impl FnOnce(&Setting<'_>) -> T) -> T {
        let Self { name, workload, ways, hash, fill, placement, fragmentation, .. } = self;
        let Self { memory, load, .. } = self;
        use_it(&Setting {
            name,
            workload,
            ways: *ways,
            seed: 1,
            hash: *hash,
            fill,
            placement,
            fragmentation,
            memory,
            load,
            reused: false,
            copy: true,
            requests: workload.contains("request="),
            whole: false,
        })
    }

    fn ordinary(program: &Program, ways: u32, column: &str) -> Self {
        Self {
            column: column.to_owned(),
            name: program.name.to_owned(),
            workload: program.workload.to_owned(),
            ways,
            hash: true,
            fill: FILL,
            placement: "bin-hopping",
            fragmentation: "0.8",
            memory: GUEST,
            load: LOAD,
        }
    }

    /// With so many threads, which have the accesses of one between them.
    fn with_threads(program: &Program, ways: u32, threads: &str) -> Self {
        let ordinary = Self::ordinary(program, ways, threads);
        if threads == THREADS[0] {
            return ordinary;
        }
        let Self { name, workload, .. } = &ordinary;
        let name = format!("{name} with {threads} threads");
        let workload = format!("{workload},threads={threads}");
        Self { name, workload, ..ordinary }
    }
}

/// What is varied, by columns; each row is a series of points.
pub(super) struct Surface {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    /// Whether the latency is of interest, and not the throughput.
    pub(super) latency: bool,
    pub(super) columns: Vec<String>,
    pub(super) series: Vec<(String, Vec<Point>)>,
}

impl Surface {
    pub(super) fn settings(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|(_, points)| points)
    }
}

/// The surfaces, each with seed 1.
pub(super) fn surfaces() -> Vec<Surface> {
    let [canneal, streamcluster, ..] = &THROUGHPUT;
    let mut surfaces = vec![occupancy()];
    let over = |title, about, values: &[&'static str], set: fn(&mut Point, &'static str)| {
        let mut series = Vec::new();
        for program in [canneal, streamcluster] {
            for ways in [1, 11] {
                let points = values.iter().map(|value| {
                    let mut point = Point::ordinary(program, ways, value);
                    set(&mut point, value);
                    point
                });
                series.push((format!("{}, {}", program.name, in_ways(ways)), points.collect()));
            }
        }
        let columns = values.iter().map(|value| (*value).to_owned()).collect();
        Surface { title, about, latency: false, columns, series }
    };
    surfaces.push(over(
        "Page placement of the guest",
        "Throughput of xPlace over that of CoPlace.",
        &PLACEMENTS,
        |point, placement| point.placement = placement,
    ));
    surfaces.push(over(
        "Fragmentation of all layers",
        "Throughput of xPlace over that of CoPlace, by FMFI.",
        &FRAGMENTATION,
        |point, fragmentation| point.fragmentation = fragmentation,
    ));
    let mut series = Vec::new();
    for program in &THROUGHPUT {
        for ways in WAYS {
            let points =
                FILLS.iter().map(|fill| Point { fill, ..Point::ordinary(program, ways, fill) });
            series.push((format!("{}, {}", program.name, in_ways(ways)), points.collect()));
        }
    }
    surfaces.push(Surface {
        title: "What fills the last level",
        about: "Throughput of xPlace over that of CoPlace, when lines that miss the last level are put into it, and \
                when those are that the second level drops, as in this processor.",
        latency: false,
        columns: FILLS.iter().map(|fill| (*fill).to_owned()).collect(),
        series,
    });
    surfaces.push(over(
        "Memory of the guest",
        "Throughput of xPlace over that of CoPlace.",
        &MEMORY,
        |point, memory| point.memory = memory,
    ));
    let mut series = Vec::new();
    for program in THROUGHPUT.iter().chain(&LATENCY[..2]) {
        for ways in [1, 11] {
            let points = THREADS.iter().map(|threads| Point::with_threads(program, ways, threads));
            series.push((format!("{}, {}", program.name, in_ways(ways)), points.collect()));
        }
    }
    surfaces.push(Surface {
        title: "Threads",
        about: "Throughput of xPlace over that of CoPlace, by threads, each a vCPU with a core of its own. All \
                share the accesses that one has elsewhere.",
        latency: false,
        columns: THREADS.iter().map(|threads| (*threads).to_owned()).collect(),
        series,
    });
    let mut series = Vec::new();
    for program in &LATENCY[..2] {
        for ways in [1, 11] {
            let points =
                LOADS.iter().map(|load| Point { load, ..Point::ordinary(program, ways, load) });
            series.push((format!("{}, {}", program.name, in_ways(ways)), points.collect()));
        }
    }
    surfaces.push(Surface {
        title: "Load",
        about: "99th percentile of the latency under xPlace over that under CoPlace, by the share of what \
                CoPlace can serve.",
        latency: true,
        columns: LOADS.iter().map(|load| (*load).to_owned()).collect(),
        series,
    });
    surfaces
}

/// Working sets of random places, with and without a hash.
fn occupancy() -> Surface {
    let mut series = Vec::new();
    for hash in [true, false] {
        for ways in WAYS {
            let points = OCCUPANCY.iter().map(|percent| {
                let (name, workload) = working_set(*percent);
                let ordinary = Point::ordinary(&THROUGHPUT[0], ways, &format!("{percent} %"));
                Point { name, workload, hash, ..ordinary }
            });
            let name = format!("{}, {}", if hash { "hash" } else { "no hash" }, in_ways(ways));
            series.push((name, points.collect()));
        }
    }
    Surface {
        title: "Cache occupancy",
        about: "Throughput of xPlace over that of CoPlace, for random accesses to a working set of this \
                share of the whole cache, with slices and their hash and without.",
        latency: false,
        columns: OCCUPANCY.iter().map(|percent| format!("{percent} %")).collect(),
        series,
    }
}
