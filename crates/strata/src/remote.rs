//! Snapshots that one layer asks another for: `strata scan --serve`, `strata join --from`.

use crate::complain::complain;
use crate::failure::Failure;
use crate::inspect_args::ScanArgs;
use crate::interrupt::Interrupt;
use crate::output::to_stdout;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use strata_inspect::{Snapshot, Tree, Watch, read_from, scan_to};
use strata_remote::{Key, KeyError, Place, Route, Server, Way, ask};

fn key(path: &Path) -> Result<Key, Failure> {
    Key::read(path).map_err(|error: KeyError| Failure::failed(error.to_string()))
}

/// Gives snapshots of this layer to whoever knows the key, until Ctrl-C.
///
/// # Errors
/// When nobody can be listened to, or there is no key.
pub fn serve(place: &Place, path: &Path, args: &ScanArgs) -> Result<u8, Failure> {
    let key = key(path)?;
    let server = Server::new(place, key).map_err(|error| {
        let remedy = match place {
            Place::Unix(path) if path.exists() => "; if nobody listens there any more, remove it",
            Place::Unix(_) => "",
            Place::Vsock { .. } => {
                "; a VM needs a vsock device (QEMU: -device vhost-vsock-pci,guest-cid=3), and its kernel \
                 vmw_vsock_virtio_transport"
            }
        };
        Failure::failed(format!("cannot listen on {place}: {error}{remedy}"))
    })?;
    let interrupt = Interrupt::watch_all();
    // For a script that waits until it may ask.
    to_stdout(format!("snapshots are given on {place} to who knows the key\n").as_bytes())?;
    let mut snapshot = |to: &mut dyn Write| {
        let watch = args
            .hot
            .map(|seconds| Watch { time: Duration::from_secs_f64(seconds), stop: &interrupt.flag });
        let done = scan_to(&Tree::new(&args.root), watch, to);
        done.map(drop).map_err(|error| error.to_string())
    };
    let mut tell = |way: Way| {
        complain(&match way {
            Way::Answered => "a snapshot was given".to_owned(),
            Way::Onward { cid, port } => format!("somebody was led on to vsock:{cid}:{port}"),
            Way::Unknown => "somebody without the key was turned away".to_owned(),
            Way::Refused(why) => format!("somebody was told: {why}"),
            Way::Broken(why) => format!("somebody went away: {why}"),
        });
    };
    let failed = |error| Failure::failed(format!("cannot listen on {place} any more: {error}"));
    server.run(&interrupt.flag, &mut snapshot, &mut tell).map_err(failed)?;
    Ok(interrupt.status())
}

/// The snapshots of layers, in the order of the routes.
///
/// # Errors
/// When a layer has none for us, or what it gives is none.
pub fn snapshots(routes: &[Route], path: &Path) -> Result<Vec<Snapshot>, Failure> {
    let key = key(path)?;
    routes.iter().map(|route| snapshot(route, &key)).collect()
}

fn snapshot(route: &Route, key: &Key) -> Result<Snapshot, Failure> {
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    ask(route, key, &mut take).map_err(|error| Failure::failed(error.to_string()))?;
    let name = route.to_string();
    read_from(&bytes, Path::new(&name)).map_err(|error| Failure::failed(error.to_string()))
}
