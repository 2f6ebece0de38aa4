//! Waits for a machine's plugin and captures: `capture SOCKET RAM MIB pc|q35 LAYERS OUT PLUGIN
//! [LIMIT]`. Prints the emulator's `-plugin` argument first, then what was found. For trying
//! machines by hand; the lab calls the same functions.

use std::env::args;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use strata_lab::recording::{Amount, Job, Listener};
use strata_tables::Capture;
use strata_tables::ram::Layout;
use strata_tables::truth;

fn main() {
    let words: Vec<String> = args().skip(1).collect();
    let [socket, ram, mib, machine, layers, out, plugin] = &words[..7] else { unreachable!() };
    let bytes = mib.parse::<u64>().expect("MIB is a number") << 20;
    let job = Job {
        ram: ram.into(),
        layout: if machine == "q35" { Layout::q35(bytes) } else { Layout::pc(bytes) },
        layers: layers.parse().expect("LAYERS is a number"),
        command: vec!["by hand".to_owned()],
        recording: format!("{out}.rec").into(),
        tables: format!("{out}.tables").into(),
    };
    let limit = words.get(7).map(|limit| limit.parse().expect("LIMIT is a number"));
    let listener = Listener::bind(Path::new(socket)).expect("the socket can be made");
    let amount = Amount { limit, ..Amount::default() };
    println!("{}", listener.plugin_argument(Path::new(plugin), &amount));
    match listener.record(&job, &AtomicBool::new(false)) {
        Err(error) => println!("{error}"),
        Ok(done) => {
            println!("{:?}, still for {:?}, {:x?}", done.frozen, done.still, done.roots);
            println!("{:?}", done.capture.check);
            println!("{:?}", done.capture.composition);
            let Capture { guest, second, lower, .. } = &done.capture;
            println!("guest: {} table pages", guest.pages.len());
            if let Some(second) = second {
                println!("second stage: {} table pages", second.pages.len());
            }
            if let Some((l1, l0)) = lower {
                println!("L1's: {} table pages, L0's: {}", l1.pages.len(), l0.pages.len());
            }
            let regions = truth::regions(&done.capture);
            let aligned = regions.iter().filter(|region| region.is_well_aligned()).count();
            println!("{} huge pages, {aligned} well aligned", regions.len());
            regions.iter().take(3).for_each(|region| println!("{region:x?}"));
        }
    }
}
