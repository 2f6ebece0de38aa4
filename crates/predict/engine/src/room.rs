//! Whether there were free huge pages enough, so that fragmentation did not matter.

use crate::layers::StackKind;
use crate::report::{LayerMemory, RunResult};

/// Where runs are, for the options that give them memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A machine of their own.
    OneMachine,
    /// A host that VMs share: each has a key for its memory.
    SharedHost,
}

/// Says in the notes of all runs on a stack that none of them was ever short of free huge pages
/// though memory was fragmented, and in which memory they would have been.
pub(crate) fn remark(runs: &mut [RunResult], place: Place) {
    for stack in StackKind::EVERY {
        let on_stack: Vec<&RunResult> = runs.iter().filter(|run| run.stack == stack).collect();
        let Some(note) = note(&on_stack, place) else { continue };
        for run in runs.iter_mut().filter(|run| run.stack == stack) {
            run.notes.push(note.clone());
        }
    }
}

/// Name of the lowest layer.
const HOST: &str = "host";

/// Bytes of memory that a guest can be given at least.
const LEAST_SUGGESTED: u64 = 64 << 20;

/// The layers of a run that fragmentation could have left without huge pages.
fn fragmented(run: &RunResult) -> impl Iterator<Item = &LayerMemory> {
    run.layers.iter().filter(|layer| layer.fragmented)
}

/// Free huge pages that were taken at a time.
fn taken(layer: &LayerMemory) -> u64 {
    layer.free_huge_before.saturating_sub(layer.free_huge_least)
}

fn note(runs: &[&RunResult], place: Place) -> Option<String> {
    // One that did not see everything might have asked for more.
    if runs.iter().any(|run| run.partial) {
        return None;
    }
    let layers = || runs.iter().flat_map(|run| fragmented(run).map(move |layer| (*run, layer)));
    if layers().any(|(_, layer)| layer.free_huge_least == 0) {
        return None;
    }
    let demand = |layer: &LayerMemory| taken(layer) as f64 / layer.free_huge_before as f64;
    let (run, layer) = layers().max_by(|(_, a), (_, b)| demand(a).total_cmp(&demand(b)))?;
    if taken(layer) == 0 {
        return None;
    }
    // Free huge pages are in proportion to memory, and those of the layers to each other.
    let guest = run.layers.first()?.size_bytes as f64;
    let short = (guest * demand(layer)) as u64;
    let needed = runs.iter().map(|run| run.memory.used_bytes).max().unwrap_or(0);
    let is_enough = short > needed.max(LEAST_SUGGESTED);
    let remedy = match place {
        // The host's are for its other VMs, too.
        Place::SharedHost if layer.layer == HOST => {
            "with less --host-memory or more --fragmentation they would not suffice".to_owned()
        }
        Place::SharedHost if is_enough => {
            format!("with memory={}MiB or less they would not suffice", short >> 20)
        }
        Place::OneMachine if is_enough => {
            format!("with --memory {}MiB or less they would not suffice", short >> 20)
        }
        _ => "they would not suffice with more --fragmentation only".to_owned(),
    };
    Some(format!(
        "free huge pages exceeded the demand, so that fragmentation mattered little: at most {} of \
         {} were taken ({}, {}); {remedy}",
        taken(layer),
        layer.free_huge_before,
        layer.layer,
        run.policy
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: &str, layers: &[(bool, u64, u64)]) -> RunResult {
        let names = ["guest", "host"];
        let layer = |(&layer, &(fragmented, free_huge_before, free_huge_least))| LayerMemory {
            layer: String::from(layer),
            size_bytes: 8 << 30,
            fragmented,
            free_huge_before,
            free_huge_least,
            ..LayerMemory::default()
        };
        let layers = names.iter().zip(layers).map(layer).collect();
        RunResult { policy: policy.to_owned(), layers, ..RunResult::default() }
    }

    fn notes(runs: Vec<RunResult>) -> Vec<String> {
        notes_at(Place::OneMachine, runs)
    }

    fn notes_at(place: Place, mut runs: Vec<RunResult>) -> Vec<String> {
        remark(&mut runs, place);
        runs.into_iter().flat_map(|run| run.notes).collect()
    }

    #[test]
    fn plenty_is_told_to_every_run_with_the_memory_that_is_not() {
        let runs = vec![
            run("base", &[(true, 800, 800), (true, 1000, 1000)]),
            run("thp", &[(true, 800, 780), (true, 1000, 900)]),
            run("aligned", &[(false, 4096, 0), (false, 5000, 0)]),
        ];
        let expected = "free huge pages exceeded the demand, so that fragmentation mattered little: \
                        at most 100 of 1000 were taken (host, thp); with --memory 819MiB or \
                        less they would not suffice";
        assert_eq!(notes(runs), vec![expected; 3]);
    }

    /// There the option for one machine is refused.
    #[test]
    fn on_a_shared_host_the_options_are_those_of_its_vms() {
        let said = |layers: &[(bool, u64, u64)]| {
            notes_at(Place::SharedHost, vec![run("thp", layers)]).remove(0)
        };
        let of_guest = said(&[(true, 800, 700), (true, 1000, 990)]);
        assert!(
            of_guest.ends_with("with memory=1024MiB or less they would not suffice"),
            "{of_guest}"
        );
        let of_host = said(&[(true, 800, 790), (true, 1000, 900)]);
        assert!(of_host.contains("with less --host-memory"), "{of_host}");
    }

    #[test]
    fn nothing_is_told_where_they_ran_short_or_nobody_wanted_one() {
        assert_eq!(notes(vec![run("thp", &[(true, 800, 0)])]), [""; 0]);
        assert_eq!(notes(vec![run("base", &[(true, 800, 800)])]), [""; 0]);
        assert_eq!(notes(vec![run("aligned", &[(false, 800, 700)])]), [""; 0]);
        let partial = RunResult { partial: true, ..run("thp", &[(true, 800, 700)]) };
        assert_eq!(notes(vec![partial]), [""; 0]);
    }

    #[test]
    fn a_memory_that_no_guest_may_have_is_not_suggested() {
        let run = run("thp", &[(true, 4000, 3980)]);
        let [note] = &notes(vec![run])[..] else { panic!("one note") };
        assert!(note.ends_with("they would not suffice with more --fragmentation only"), "{note}");
    }

    #[test]
    fn where_no_memory_is_small_enough_more_fragmentation_is_the_remedy() {
        let mut run = run("thp", &[(true, 4000, 3000)]);
        run.memory.used_bytes = 3 << 30;
        let [note] = &notes(vec![run])[..] else { panic!("one note") };
        assert!(note.ends_with("they would not suffice with more --fragmentation only"), "{note}");
    }
}
