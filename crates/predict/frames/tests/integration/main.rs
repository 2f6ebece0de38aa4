//! The memory of a layer against its slow twin.

mod coloured;
mod fragmenter;
mod random_streams;
mod scenarios;
mod twin;
