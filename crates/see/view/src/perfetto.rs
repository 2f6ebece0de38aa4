//! A run's states over time as a trace for Perfetto: counters, and exits as slices.
//!
//! Messages and field numbers are those of `protos/perfetto/trace` in Perfetto's sources, as far as they
//! are used; written by hand, so that no compiler of such files is needed to build.

use crate::error::ViewError;
use crate::figures::{Row, groups};
use crate::input::Result as Given;
use crate::input::run::{HANDED_ON, MAY_BE_HANDED_ON, Run, Series};
use prost::Message;

/// Everything.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    unit_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<Annotation>,
    /// One of the constants below.
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const COUNTER: i32 = 4;
/// All packets are of one writer.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: what follows depends on nothing before.
const CLEARED: u32 = 1;
/// The trace of a result of `strata run`.
///
/// # Errors
/// When `json` is none, or has no states over time.
pub fn trace_events(json: &str) -> Result<Vec<u8>, ViewError> {
    let Given::Run(report) = Given::read(json)? else {
        return Err(ViewError::NotAResult("only strata run has states over time".to_owned()));
    };
    let mut writer = Writer { packets: Vec::new(), tracks: 0 };
    let mut found = false;
    for (number, (title, row)) in groups(&report)
        .iter()
        .flat_map(|group| group.rows.iter().map(move |row| (&group.title, row)))
        .enumerate()
    {
        if let Some(series) = &row.run.series {
            found = true;
            writer.run(number as i32 + 1, title, row, series);
        }
    }
    if !found {
        return Err(ViewError::NotAResult(
            "it has no states over time: run it with --detail".to_owned(),
        ));
    }
    Ok(Trace { packet: writer.packets }.encode_to_vec())
}

struct Writer {
    packets: Vec<Packet>,
    /// Tracks given so far.
    tracks: u64,
}

impl Writer {
    fn packet(&mut self, packet: Packet) {
        let flags = self.packets.is_empty().then_some(CLEARED);
        let trusted_packet_sequence_id = Some(SEQUENCE);
        self.packets.push(Packet { trusted_packet_sequence_id, sequence_flags: flags, ..packet });
    }

    fn track(&mut self, track: TrackDescriptor) -> u64 {
        self.tracks += 1;
        let track_descriptor = Some(TrackDescriptor { uuid: Some(self.tracks), ..track });
        self.packet(Packet { track_descriptor, ..Packet::default() });
        self.tracks
    }

    /// A run is as a process; its counters and exits are tracks of it.
    fn run(&mut self, pid: i32, title: &str, row: &Row<'_>, series: &Series) {
        let is_sampled = row.run.sampled.is_some();
        let note = if is_sampled { " (sampled: times and what has a ~ are estimated)" } else { "" };
        let name = format!("{title}: {}{note}", row.label);
        let process = ProcessDescriptor { pid: Some(pid), process_name: Some(name) };
        let process = TrackDescriptor { process: Some(process), ..TrackDescriptor::default() };
        let run = self.track(process);
        let whole = |counts: &[u64]| counts.iter().map(|count| *count as f64).collect::<Vec<_>>();
        let name = |name: &str| row.run.mark(name.to_owned());
        self.counter(run, &name("accesses"), "accesses", series, &whole(&series.accesses));
        self.counter(run, &name("L2 TLB misses"), "misses", series, &whole(&series.l2_misses));
        self.counter(run, "well-aligned huge pages", "pages", series, &whole(&series.well_aligned));
        self.counter(run, "memory used", "bytes", series, &whole(&series.used_bytes));
        for (layer, counts) in &series.faults {
            self.counter(run, &format!("{layer}: page faults"), "faults", series, &whole(counts));
        }
        for (layer, values) in &series.fmfi {
            self.counter(run, &format!("{layer}: FMFI"), "", series, values);
        }
        for (layer, reasons) in &series.exits {
            for (reason, counts) in reasons {
                let name = format!("{layer}: exits, {}", reason.replace('_', " "));
                self.counter(run, &name, "exits", series, &whole(counts));
            }
            self.exits(run, layer, row.run, series);
        }
    }

    fn counter(&mut self, run: u64, name: &str, unit: &str, series: &Series, values: &[f64]) {
        let unit_name = (!unit.is_empty()).then(|| unit.to_owned());
        let track = self.track(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(run),
            counter: Some(CounterDescriptor { unit_name }),
            ..TrackDescriptor::default()
        });
        for (seconds, value) in series.seconds.iter().zip(values) {
            let event = TrackEvent {
                kind: Some(COUNTER),
                track_uuid: Some(track),
                double_counter_value: Some(*value),
                ..TrackEvent::default()
            };
            self.event(*seconds, event);
        }
    }

    /// Exits of a layer: those of one reason between two moments are one slice, as long as they took, one
    /// after the other from the first of the two.
    fn exits(&mut self, run: u64, layer: &str, run_of: &Run, series: &Series) {
        let reasons = &series.exits[layer];
        let track = self.track(TrackDescriptor {
            name: Some(format!("{layer}: exits")),
            parent_uuid: Some(run),
            ..TrackDescriptor::default()
        });
        for (index, moments) in series.seconds.windows(2).enumerate() {
            let mut at = moments[0];
            for (reason, counts) in reasons {
                let between = |counts: &[u64]| match counts.get(index..index + 2) {
                    Some([before, after]) => after.saturating_sub(*before),
                    _ => 0,
                };
                let of = |reason: &str| reasons.get(reason).map_or(0, |counts| between(counts));
                let handed_on = of(HANDED_ON);
                let first = MAY_BE_HANDED_ON.iter().take_while(|other| **other != reason.as_str());
                let exits = match MAY_BE_HANDED_ON.contains(&reason.as_str()) {
                    true => {
                        let left = handed_on.saturating_sub(first.map(|other| of(other)).sum());
                        between(counts).saturating_sub(left)
                    }
                    false => between(counts),
                };
                let Some(each) = run_of.exit_seconds(reason).filter(|_| exits > 0) else {
                    continue;
                };
                // Costs of background work may pass in less time than they take.
                let end = (at + exits as f64 * each).min(moments[1]);
                let slice = TrackEvent { track_uuid: Some(track), ..TrackEvent::default() };
                let begin = TrackEvent {
                    kind: Some(SLICE_BEGIN),
                    name: Some(reason.replace('_', " ")),
                    debug_annotations: vec![Annotation {
                        uint_value: Some(exits),
                        name: Some("exits".to_owned()),
                    }],
                    ..slice.clone()
                };
                self.event(at, begin);
                self.event(end, TrackEvent { kind: Some(SLICE_END), ..slice });
                at = end;
            }
        }
    }

    fn event(&mut self, seconds: f64, event: TrackEvent) {
        let timestamp = Some((seconds * 1e9).round().max(0.0) as u64);
        self.packet(Packet { timestamp, track_event: Some(event), ..Packet::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> String {
        let series = json!({
            "interval": 0.001, "seconds": [0.0, 0.001, 0.002], "accesses": [0, 10, 20],
            "l1_misses": [0, 1, 2], "l2_misses": [0, 1, 2], "walk_cycles": [0, 0, 0],
            "cycles": [0, 1, 2], "faults": {"guest": [0, 3, 3]},
            "exits": {"guest": {"handed_on": [0, 2, 2], "second_stage_violation": [0, 3, 3]}},
            "fmfi": {"guest": [0.5, 0.5, 0.25]}, "guest_huge": [0, 1, 1], "well_aligned": [0, 1, 1],
            "type1": [0, 0, 0], "type2": [0, 0, 0], "used_bytes": [0, 4096, 4096],
        });
        let run = json!({
            "stack": "nested", "policy": "thp", "cpu": "a", "accesses": 20,
            "tlb": {"l1_misses": 2, "l2_misses": 2}, "walks": 2, "walk_refs": 2,
            "walk_positions": [], "cycles": 2, "elapsed_seconds": 0.002, "cycles_by_kind": {},
            "bill": [
                {"name": "useful work", "level": "guest", "cycles": 7, "event": ""},
                {"name": "exits: handed on", "level": "guest", "cycles": 20000, "event": ""},
            ],
            "alignment": {"guest_huge": 1, "well_aligned": 1, "type1": 0, "type2": 0},
            "faults": {"guest": 3}, "memory": {"touched_bytes": 1, "used_bytes": 1},
            "relative_throughput": 1.0, "series": series,
            "parameters": {
                "core.frequency_mhz": "1000", "exit.handed_on": "10000",
                "exit.second_stage_violation": "2000",
            },
        });
        json!({
            "strata": 1, "partial": false, "partial_reason": null, "seed": 1,
            "workload": {"name": "x", "kind": "live", "footprint_bytes": null}, "runs": [run],
        })
        .to_string()
    }

    #[test]
    fn exits_are_slices_as_long_as_they_took_and_states_are_counters() {
        let trace = Trace::decode(&trace_events(&report()).unwrap()[..]).unwrap();
        assert!(trace.packet.iter().all(|packet| packet.trusted_packet_sequence_id == Some(1)));
        let events =
            || trace.packet.iter().filter_map(|p| Some((p.timestamp?, p.track_event.as_ref()?)));
        let slices: Vec<_> = events()
            .filter(|(_, event)| event.kind != Some(COUNTER))
            .map(|(at, event)| (at, event.kind.unwrap(), event.name.clone().unwrap_or_default()))
            .collect();
        // Two handed on of 10,000 cycles each at 1 GHz; the third violation is the host's own.
        let expected = [
            (0, SLICE_BEGIN, "handed on"),
            (20_000, SLICE_END, ""),
            (20_000, SLICE_BEGIN, "second stage violation"),
            (22_000, SLICE_END, ""),
        ];
        assert_eq!(slices, expected.map(|(at, kind, name)| (at, kind, name.to_owned())));
        let named = |name: &str| {
            let tracks = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref());
            let mut tracks = tracks.filter(|track| track.name.as_deref() == Some(name));
            tracks.next().expect("the track is there").uuid
        };
        let fmfi: Vec<f64> = events()
            .filter(|(_, event)| event.track_uuid == named("guest: FMFI"))
            .map(|(_, event)| event.double_counter_value.unwrap())
            .collect();
        assert_eq!(fmfi, [0.5, 0.5, 0.25]);
    }

    #[test]
    fn tracks_of_estimates_say_so() {
        let mut value: serde_json::Value = serde_json::from_str(&report()).unwrap();
        let names = |value: &serde_json::Value| -> Vec<String> {
            let trace = Trace::decode(&trace_events(&value.to_string()).unwrap()[..]).unwrap();
            let tracks = trace.packet.into_iter().filter_map(|packet| packet.track_descriptor);
            let name = |track: TrackDescriptor| match track.process {
                Some(process) => process.process_name,
                None => track.name,
            };
            tracks.filter_map(name).collect()
        };
        let whole = names(&value);
        assert!(whole.iter().all(|name| !name.contains('~')), "{whole:?}");
        value["runs"][0]["sampled"] = json!({"windows": 9, "confidence": 95, "bounds": {}});
        let sampled = names(&value);
        assert!(sampled[0].ends_with("(sampled: times and what has a ~ are estimated)"));
        assert_eq!(sampled.iter().filter(|name| name.starts_with('~')).count(), 2, "{sampled:?}");
        assert!(sampled.contains(&"guest: page faults".to_owned()), "{sampled:?}");
    }

    /// Field numbers and types are what Perfetto reads, whatever our structures call them.
    #[test]
    fn bytes_are_those_of_the_format() {
        let event = TrackEvent {
            kind: Some(COUNTER),
            track_uuid: Some(3),
            double_counter_value: Some(1.0),
            ..TrackEvent::default()
        };
        let packet = Packet { timestamp: Some(5), track_event: Some(event), ..Packet::default() };
        let bytes = Trace { packet: vec![packet] }.encode_to_vec();
        // Keys are the field's number times 8 and its type: 0 whole number, 1 eight bytes, 2 bytes.
        let inner = [9 << 3, 4, 11 << 3, 3, 0xe1, 0x02, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
        let mut expected =
            vec![10, 4 + inner.len() as u8, 8 << 3, 5, (11 << 3) | 2, inner.len() as u8];
        expected.extend(inner);
        assert_eq!(bytes, expected);
        assert_eq!((44 << 3) | 1, 0xe1 & 0x7f | (0x02 << 7));
    }

    #[test]
    fn what_has_no_states_over_time_is_told_with_a_remedy() {
        let mut value: serde_json::Value = serde_json::from_str(&report()).unwrap();
        value["runs"][0].as_object_mut().unwrap().remove("series");
        let message = trace_events(&value.to_string()).unwrap_err().to_string();
        assert!(message.contains("--detail"), "{message}");
    }

    #[test]
    fn folded_stacks_are_of_exits_only() {
        let folded = crate::folded(&report()).unwrap();
        assert_eq!(folded, "In a nested VM;thp;exits of guest;handed on 20000\n");
    }
}
