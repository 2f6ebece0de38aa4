//! Bodies of the fuzz targets, which the ordinary tests run too. Each takes any bytes and panics
//! when a reader breaks a promise.

use crate::{capture::Capture, file, truth, variant};
use strata_addr::{Hpa, Vpn};

fn use_it(capture: &Capture) {
    for page in [0, 0x6_0000_0000, u64::MAX >> 12] {
        capture.translate(Vpn::new(page));
    }
    for variant in variant::TableVariant::ALL {
        let _ = variant::tables(capture, variant, Hpa::new(1 << 40));
    }
    truth::regions(capture);
    let bytes = file::encode(capture).expect("memory for zstd");
    assert_eq!(file::decode(&bytes).as_ref(), Ok(capture), "what is read can be written");
}

/// A tables file made of any bytes.
pub fn tables(bytes: &[u8]) {
    if let Ok(capture) = file::decode(bytes) {
        use_it(&capture);
    }
}

/// The content of a tables file, behind its checksums, made of any bytes.
pub fn content(bytes: &[u8]) {
    if let Some(capture) = file::content(bytes) {
        use_it(&capture);
    }
}
