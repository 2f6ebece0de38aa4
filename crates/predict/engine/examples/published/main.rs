//! Prints `docs/published.md`: what the papers report beside what the model finds.
//!
//! `cargo run --release -p strata-engine --example published > docs/published.md`

mod conditions;
mod figures;
mod tables;

fn main() {
    print!("{}", tables::document());
}
